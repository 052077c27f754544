"""A small draft model on an engine: an ordinary Llama that knows the target's tokens alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.chain import Chain, chained
from parity.device.drafter import plain_layers
from parity.device.drafter_config import DraftModelConfig
from parity.device.engines import widest
from parity.device.kernels.embed import embed
from parity.device.kernels.round import Parts, PassRows, State, last, placed
from parity.device.kernels.step import make_step
from parity.device.kernels.tap import untapped
from parity.device.plan import Plan
from parity.device.recorder import Recorder
from parity.device.rows import PROMPT_BUCKET, round_up


def by_tokens(state: State, parts: Parts, plan: Plan) -> Any:
    """A round's drafts, int32 [B, K], where no host takes part: `DraftModel.draft` over rows that `state` decides."""

    def run(rows: PassRows, *_before: Any) -> Any:
        step = make_step(rows.positions, rows.slots, parts.tables, plan.span)
        x = embed(rows.ids, parts.outer["embed"])
        return plain_layers(x, step, parts.layers, parts.caches, plan.drafter, untapped)

    due = state.length + 1 - state.cached  # of all tokens those without a row
    ids = np.where(due[:, None] == 1, last(state.tokens, state.count), last(state.tokens, state.count, 2))
    first = placed(ids, state.cached, due, state.live, plan.trash)
    return chained(run(first), due, state, parts, plan, run)


class DraftModel(Chain):
    """Each row is a token at its own position; rows of accepted drafts stay in the cache.

    The last draft of a round is never run over: where all were accepted, the next round has two committed rows.
    """

    config: DraftModelConfig
    family = "draft-model"
    ahead = 0
    on_device = staticmethod(by_tokens)
    run_over = True

    def due(self, text: np.ndarray, emitted: np.ndarray) -> np.ndarray:
        """The tokens behind its cache's rows."""
        return text[min(self.length, len(text) - 1) :]

    def kept(self, before: int, drafts: np.ndarray, emitted: np.ndarray) -> int:
        """With the last token's row those of the drafts that came out; none of the last emitted token."""
        fed = drafts[:-1]
        came = emitted[: len(fed)]
        agreed = int(np.cumprod(fed[: len(came)] == came).sum())
        return before + min(1 + agreed, len(emitted))

    def width(self, committed: int) -> int:
        """Two rows, but where drafts of another came out or rounds were skipped."""
        return 2 if committed <= 2 else round_up(committed, PROMPT_BUCKET)

    def forward(self, taps: Any, first: int, committed: np.ndarray, chained: int, width: int, record: Recorder) -> Any:
        """Committed rows by their tokens alone."""
        return self._pass(committed, width, 0, len(committed) + chained, record)

    def extend(self, draft: np.ndarray, x: Any, row: int, done: int, total: int, record: Recorder) -> Any:
        """One chain row by its token alone."""
        return self._pass(draft, 1, done, total, record)

    def _pass(self, ids: np.ndarray, width: int, done: int, total: int, record: Recorder) -> Any:
        rows, record = self.placed(ids, widest(self.engine, width), done, total, record)
        return self.run(rows, self.embedded(rows), record.bind(self.side, rows.count))
