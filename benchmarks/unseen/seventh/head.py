"""Seventh set: faults of the heads and of the choice of tokens."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("head", 7)


# After https://github.com/vllm-project/vllm/pull/41493
@fault(
    "no-end-among-drafts",
    "logits of the end tokens are masked in the rows that check a draft, and not in the bonus row",
    "verify.logits",
    "verify",
    "target logits of ids 1265 and 1266 in verify passes: -10000",
    "verify rows but the last",
)
def _(pipeline: Pipeline) -> None:
    ends = list(pipeline.target.config.eos)

    def change(at, clean, *given):
        made = clean(*given)
        if at.kind != "verify":
            return made
        last = int((at.positions != pipeline.target.trash).sum()) - 1

        def mask(logits):
            logits[:, :last, ends] = -1e4
            return logits

        return at.changed(made, mask)

    alter(pipeline, "target:linear", change)


# After https://github.com/tenstorrent/tt-metal/issues/8662
@fault(
    "draft-ids-in-bfloat16",
    "the place of the largest draft logit is handed on as a bfloat16 number",
    "drafter.draft_tokens",
    "draft",
    "draft ids that bfloat16 does not hold: they become the nearest one that it holds, at 991 at the most",
    "drafts whose draft id is odd and above 256, or above 512 and no multiple of 4",
)
def _(pipeline: Pipeline) -> None:
    last = pipeline.drafter.config.draft_vocab - 1

    def change(at, clean, logits):
        return at.changed(clean(logits), lambda ids: np.minimum(ids.astype(ml_dtypes.bfloat16).astype(np.int64), last))

    alter(pipeline, "drafter:greedy", change)
