"""What is known of the rows of a stage: where they stand, what went before, what entered and which experts ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from parity.compare.entered import entered_tokens, own_tokens
from parity.compare.loads import Loads
from parity.compare.reached import computed_before
from parity.compare.routed import Routed, routed
from parity.compare.rows import Clock, StageRows
from parity.errors import UsageError
from parity.files import config_of
from parity.golden.views import DumpView

LENGTHS = ("window", "position", "context", "length", "chunk", "block", "page")
"""Parts of a key's name that make its number a place in the sequence; a head dimension of 32 is none."""

CHOSEN = ("tokens", "draft_tokens")
"""Stages of ids that are the best of some scores."""


LATER = ("row", "ahead", "start", "end")
"""What is known of passes behind the prefill alone: there it would be the prompt's length, or nothing."""


@dataclass(frozen=True)
class Facts:
    """Of rows [R], int64 unless said otherwise.

    Attributes:
        prompt, round, position: as in `StageRows`; `index` counts a row inside its tensor, `count` that tensor's rows.
        prompts: tokens of the row's prompt.
        committed: of drafter stages, the committed rows of the tensor, -1 where the stage has none of its own.
        side: target, verify, drafter or kv.
        experts: bool [R] by expert that the golden chose, where the stage lies behind a router.
        lengths: numbers of the checkpoints' configs by name.
        cached: rows in the model's own cache before the pass; None where that is not known.
        accepted: drafts that the round before accepted, -1 in the prefill and in round 1; None where not known.
        layer: of the row's stage, -1 outside the layers; None where all rows are of one stage.
        token: the id that entered the row's pass at its position, -1 where that is not known; None where it never is.
        own: of a drafter's committed rows, the id at the row's own position, which the row before took; -1 elsewhere.
        accepts: drafts that the row's own round accepts, -1 in the prefill.
        left: tokens of the budget that are left where the row's round begins.
        due: of a choice, the golden's id; -1 in other stages.
        repeats: of a choice behind its pass' first row, whether it is the id of the row before; -1 elsewhere.
        again: see `computed_before`.
        alike: whether the row's pass has as many rows as the last one that was no prefill, of this prompt or the one
            before; -1 in the prefill.
        largest: the largest magnitude in the golden's row, float64; -1 of ids.
        best, least_share: of rows behind a router the expert of the largest score and the smallest routing weight.
        least_load, most_load, first_place, last_place: of the same rows, see `Loads`.
    """

    prompt: np.ndarray
    round: np.ndarray
    position: np.ndarray
    index: np.ndarray
    count: np.ndarray
    prompts: np.ndarray
    committed: np.ndarray
    side: str
    experts: Mapping[int, np.ndarray] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    cached: np.ndarray | None = None
    accepted: np.ndarray | None = None
    layer: np.ndarray | None = None
    token: np.ndarray | None = None
    own: np.ndarray | None = None
    accepts: np.ndarray | None = None
    left: np.ndarray | None = None
    due: np.ndarray | None = None
    repeats: np.ndarray | None = None
    again: np.ndarray | None = None
    alike: np.ndarray | None = None
    largest: np.ndarray | None = None
    best: np.ndarray | None = None
    least_share: np.ndarray | None = None
    least_load: np.ndarray | None = None
    most_load: np.ndarray | None = None
    first_place: np.ndarray | None = None
    last_place: np.ndarray | None = None

    def known(self, name: str) -> np.ndarray:
        """One of the facts [R] by name, -1 where it is not known.

        Beside the attributes these are, in passes behind the prefill, `row` (the index), `ahead` (how many rows are
        behind this one) and the positions of the pass's first row, `start`, and of its last, `end`; in the prefill
        `behind`, how many of the prompt's rows are behind this one; `highest` and `lowest` of the experts; and `depth`,
        the number of a masked row among those of its pass.
        """
        ahead = self.count - 1 - self.index
        if name in LATER:
            of_pass = {
                "row": self.index,
                "ahead": ahead,
                "start": self.position - self.index,
                "end": self.position + ahead,
            }
            return np.where(self.round > 0, of_pass[name], -1)
        if name == "behind":  # of prompts of one length it is the position in other words
            told = (self.round == 0) & (len(np.unique(self.prompts)) > 1)
            return np.where(told, np.maximum(self.prompts - 1 - self.position, 0), -1)
        if name == "depth":
            return np.where((self.committed >= 0) & (self.index >= self.committed), self.index - self.committed, -1)
        if name in ("highest", "lowest"):
            return self._expert(np.maximum if name == "highest" else np.minimum)
        values: np.ndarray | None = getattr(self, name)
        return values if values is not None else np.full(len(self.prompt), -1)

    def of_rows(self, which: np.ndarray) -> Facts:
        """The facts of some of the rows."""
        held = {each.name: getattr(self, each.name) for each in fields(self)}
        taken = {name: value[which] for name, value in held.items() if isinstance(value, np.ndarray)}
        return replace(self, experts={expert: chosen[which] for expert, chosen in self.experts.items()}, **taken)

    def _expert(self, of: np.ufunc) -> np.ndarray:
        found = np.full(len(self.prompt), -1)
        for expert, chosen in self.experts.items():
            found = np.where(chosen, np.where(found < 0, expert, of(found, expert)), found)
        return found

    @classmethod
    def joined(cls, parts: Sequence[Facts]) -> Facts:
        """Those of several stages' rows, one behind the other; an expert is the one of this number in any layer."""
        by_row = [each.name for each in fields(cls) if each.name not in ("side", "experts", "lengths")]
        rows: dict[str, Any] = {name: np.concatenate([part.known(name) for part in parts]) for name in by_row}
        nobody = [np.zeros(len(part.prompt), bool) for part in parts]
        experts = {
            expert: np.concatenate([part.experts.get(expert, none) for part, none in zip(parts, nobody, strict=True)])
            for expert in sorted({expert for part in parts for expert in part.experts})
        }
        return replace(parts[0], **rows, experts=experts)

    @classmethod
    def of(cls, golden: DumpView, rows: StageRows) -> Facts:
        """Of these rows over a golden; a checkpoint that is not here any more has no lengths."""
        lengths = _lengths(golden, rows.named.stage.side)
        return cls.of_places(golden, rows).behind(routed(golden, rows), lengths)

    def behind(self, router: Routed, lengths: Mapping[str, int]) -> Facts:
        """These, of rows behind a router, with the lengths of a config."""
        known = replace(self, experts=router.experts, best=router.best, least_share=router.least, lengths=lengths)
        if not router.experts:
            return known
        loads = Loads.of(router.experts, self.passes)
        return replace(
            known,
            least_load=loads.least_load,
            most_load=loads.most_load,
            first_place=loads.first_place,
            last_place=loads.last_place,
        )

    @property
    def passes(self) -> np.ndarray:
        """Which pass of which layer each row is of, counted from 0, int64 [R]."""
        labels = np.column_stack([self.prompt, self.round, self.known("layer")])
        return np.asarray(np.unique(labels, axis=0, return_inverse=True)[1].ravel())

    @classmethod
    def of_places(cls, golden: DumpView, rows: StageRows) -> Facts:
        """The same but for experts and lengths: what takes no tensor of the stage's layer and no config."""
        cases = golden.manifest.case.prompts
        edges = np.flatnonzero(np.diff(rows.prompt, prepend=-1) | np.diff(rows.round, prepend=-1))
        counts = np.diff(np.append(edges, len(rows.prompt)))
        cached, accepted, accepts, left = _histories(golden, rows, edges, counts)
        index, due = np.arange(len(rows.prompt)) - np.repeat(edges, counts), _due(rows)
        return cls(
            prompt=rows.prompt,
            round=rows.round,
            position=rows.position,
            index=index,
            count=np.repeat(counts, counts),
            prompts=np.array([len(case.ids) for case in cases])[rows.prompt],
            committed=_committed(golden, rows),
            side=rows.named.stage.side,
            cached=cached,
            accepted=accepted,
            token=entered_tokens(golden, rows),
            own=own_tokens(golden, rows),
            accepts=accepts,
            left=left,
            due=due,
            repeats=np.where((index > 0) & (due >= 0), due == np.roll(due, 1), -1),
            again=computed_before(golden, rows),
            alike=np.repeat(_alike(rows.round[edges], counts), counts),
            largest=_largest(rows),
        )


def _histories(golden: DumpView, rows: StageRows, edges: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Of each row the rows cached before its pass, the drafts accepted in the round before it and in its own, and the
    tokens that are left."""
    drafter = "drafter" in rows.named.name
    clocks = Clock.all_of(golden)
    seen = []
    for prompt, round_ in zip(rows.prompt[edges].tolist(), rows.round[edges].tolist(), strict=True):
        clock = clocks[prompt]
        cached = (clock.drafted[round_ - 1] if drafter else clock.length(round_ - 1)) if round_ else 0
        accepts = [clock.emitted[of] - 1 if 0 < of < clock.rounds else -1 for of in (round_ - 1, round_)]
        seen.append((cached, *accepts, golden.manifest.case.max_new_tokens - sum(clock.emitted[:round_])))
    table = np.array(seen, np.int64).reshape(-1, 4)
    return [np.repeat(values, counts) for values in table.T]


def _alike(rounds: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Of passes in the order in which they run, what `Facts.alike` is of their rows."""
    later = np.flatnonzero(rounds)
    found = np.full(len(rounds), -1)
    found[later] = np.diff(counts[later], prepend=-1) == 0
    return found


def _due(rows: StageRows) -> np.ndarray:
    """The ids of a choice, one for each row."""
    ids = rows.golden.dtype.kind in "iu" and rows.golden.ndim == 1 and rows.named.stage.part in CHOSEN
    return rows.golden.astype(np.int64) if ids else np.full(len(rows.prompt), -1)


def _largest(rows: StageRows) -> np.ndarray:
    if rows.sketched or rows.golden.dtype.kind in "iub" or rows.golden.size == 0:
        return np.full(len(rows.prompt), -1.0)
    return np.asarray(np.abs(rows.golden.reshape(len(rows.golden), -1)).max(axis=1), np.float64)


def _committed(golden: DumpView, rows: StageRows) -> np.ndarray:
    """Committed rows of a drafter pass: known tokens; the head's stages start at the last of them."""
    if rows.named.stage.side != "drafter":
        return np.full(len(rows.prompt), -1)
    clocks = Clock.all_of(golden)
    head = rows.named.name in ("drafter.pre_head_hidden", "drafter.logits", "drafter.draft_tokens")
    one = head or rows.named.stage.axes[0] == "B"  # a block begins with one known token
    due = [
        (1 if one else clocks[prompt].committed(round_)) if round_ else -1
        for prompt, round_ in zip(rows.prompt.tolist(), rows.round.tolist(), strict=True)
    ]
    return np.array(due)


def _lengths(golden: DumpView, side: str) -> dict[str, int]:
    """The lengths of the stage's own checkpoint first, then those that only the other one has."""
    model = golden.manifest.model
    order = (model.drafter, model.target) if side == "drafter" else (model.target, model.drafter)
    lengths: dict[str, int] = {}
    for part in order:
        for name, number in _numbers(_config(Path(part.path))):
            lengths.setdefault(name, number)
    return lengths


def _config(folder: Path) -> dict[str, Any]:
    """A checkpoint's config; nothing where it is absent, too large or broken: a relation is no verdict."""
    try:
        return config_of(folder)
    except UsageError:
        return {}


def _numbers(part: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Every whole number whose name says that it is a length, parts included."""
    for name, value in part.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif type(value) is int and value > 0 and any(part in name for part in LENGTHS) and not name.startswith("num_"):
            yield name, value
