"""Speculative sampling of one sequence: what is drawn where the greedy choice would stand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parity.device.engines import AnyEngine
from parity.device.kernels.head import greedy, to_target_ids
from parity.device.kernels.sample import by_residual, drawn, in_target_ids, probabilities
from parity.device.rows import Rows
from parity.errors import UsageError
from parity.seam import DRAWS, Sampling


@dataclass(frozen=True)
class Proposed:
    """A round so far.

    Args:
        round: 0 for the prefill.
        drafts: target ids.
        rows: what they were drawn from: [1, n, VD] of each pass of the drafter.
        d2t: target id minus draft id, [VD].
    """

    round: int = 0
    drafts: tuple[int, ...] = ()
    rows: tuple[Any, ...] = ()
    d2t: Any = None


class Sampler:
    """Draws by the numbers it is given; holds what the drafts of this round were drawn from.

    Args:
        uniforms: float32 [R, 4, n]; see `parity.seam.Samples`.

    Raises:
        UsageError: they are no such table.
    """

    def __init__(self, settings: Sampling, uniforms: np.ndarray, engine: AnyEngine) -> None:
        self.settings, self.engine = settings, engine
        self.uniforms, self.proposed = np.asarray(uniforms, np.float32), Proposed()
        if self.uniforms.ndim != 3 or self.uniforms.shape[1] != len(DRAWS):
            raise UsageError(f"uniforms: [R, {len(DRAWS)}, n] are expected, not {list(self.uniforms.shape)}.")

    def first(self, logits: Any, rows: Rows) -> Any:
        """Greedy ids of a prompt's logits [1, W, V], the last logical row's drawn: int32 [1, W]."""
        last = rows.count - 1
        token = drawn(self.processed(logits[:, last : last + 1]), self._array(self.uniform("target", 0, 1)))
        is_last = np.arange(rows.width)[None] == last
        return np.where(self.engine.array(is_last), token, greedy(logits))

    def draft(self, logits: Any, d2t: Any) -> Any:
        """Drafts of the next rows out of logits [1, n, VD]: target ids, int32 [1, n]."""
        so_far, q = self.proposed, self.proposal(logits)
        uniforms = self.uniform("draft", len(so_far.drafts), logits.shape[1])
        ids = to_target_ids(drawn(q, self._array(uniforms)), d2t)
        self.proposed = replace(so_far, rows=(*so_far.rows, self.remembered(logits, q)), d2t=d2t)
        return ids

    def take(self, drafts: np.ndarray) -> None:
        """The next drafts [n] as the round goes on with them: where a tap put others, they count as drawn from q."""
        self.proposed = replace(self.proposed, drafts=(*self.proposed.drafts, *map(int, drafts)))

    def verify(self, logits: Any, rows: Rows) -> Any:
        """What the rule makes of the drafts in a verify pass of logits [1, W, V]: int32 [1, W]."""
        drafts, p = rows.ids[:, 1 : rows.count], self.processed(logits[:, : rows.count])
        table = np.stack([self.uniform(what, 0, rows.count) for what in DRAWS], axis=1)
        return self.decided(p, self._proposal_of(drafts, p.shape[-1]), drafts, table)

    def decide(self, target_logits: Any, draft_logits: Any, drafts: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """See `parity.seam.Decides`."""
        logits = self.engine.array(draft_logits)
        q = self.remembered(logits, self.proposal(logits))
        ids = self.decided(self.processed(self.engine.array(target_logits)), q, drafts, uniforms)
        return self.engine.host(ids)

    def decided(self, p: Any, q: Any, drafts: np.ndarray, uniforms: np.ndarray) -> Any:
        """What the rule emits, row by row: int32 [B, n+1].

        Args:
            p, q: [B, n+1, V] and [B, n, V].
            drafts: int32 [B, n].
            uniforms: [B, 4, n+1].
        """
        count = drafts.shape[1]
        table = dict(zip(DRAWS, np.moveaxis(np.asarray(uniforms, np.float32), 1, 0), strict=True))
        if self.settings.rule == "match" or not count:
            return drawn(p, self._array(table["target"][:, : count + 1]))
        accept, replace = (self._array(table[what][:, :count]) for what in ("accept", "replace"))
        target = self._array(table["target"][:, count : count + 1])
        return by_residual(p, q, self.engine.array(drafts), accept, replace, target)

    def processed(self, logits: Any) -> Any:
        """p: the target's distribution behind the processors."""
        return probabilities(logits, self.settings)

    def proposal(self, logits: Any) -> Any:
        """What drafts are drawn from, [B, n, VD]: the drafter's distribution behind the processors."""
        return probabilities(logits, self.settings)

    def remembered(self, logits: Any, q: Any) -> Any:
        """q as the rule will know it, of drafts that were drawn from q."""
        return q

    def uniform(self, what: str, first: int, count: int) -> np.ndarray:
        """The numbers of this round for what is decided in `count` rows from `first` on: float32 [1, count].

        Raises:
            UsageError: the table ends before.
        """
        row = self.uniforms[self.proposed.round :][:1, DRAWS.index(what), first : first + count]
        if row.shape != (1, count):
            wanted = f"round {self.proposed.round}, row {first + count - 1}"
            raise UsageError(f"uniforms: {list(self.uniforms.shape)} hold no number for {wanted}.")
        return row

    def _proposal_of(self, drafts: np.ndarray, vocabulary: int) -> Any:
        """q of drafts [1, n]: what they were drawn from, or certain ones where somebody else chose them."""
        count = drafts.shape[1]
        if count and tuple(drafts[0].tolist()) == self.proposed.drafts[:count]:
            offsets = self.engine.host(self.proposed.d2t)
            places = np.full(vocabulary, len(offsets), np.int32)
            places[np.arange(len(offsets)) + offsets] = np.arange(len(offsets))
            q = np.concatenate(self.proposed.rows, axis=1)[:, :count]
            return in_target_ids(q, self.engine.array(places))
        return self._array((drafts[..., None] == np.arange(vocabulary)).astype(np.float32))

    def _array(self, values: np.ndarray) -> Any:
        return self.engine.array(np.ascontiguousarray(values))
