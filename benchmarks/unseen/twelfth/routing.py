"""Twelfth set: faults of the router's choice and of its shares."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("routing", 12)


# After https://github.com/sgl-project/sglang/pull/35160: a softmax in one branch, and a kernel that is given logits.
@fault(
    "shares-are-logits",
    "the kernel that mixes experts is handed the chosen logits as their shares",
    "target.layers.0.ffn_out",
    "prefill",
    "shares of every layer's experts: their router logits, without a softmax",
)
def _(pipeline: Pipeline) -> None:
    alter(pipeline, "kernels.moe:softmax", lambda at, clean, x: x)


# Of the class of https://github.com/huggingface/transformers/issues/40545: 0 stands for none, and is an expert.
@fault(
    "expert-0-is-not-taken-out",
    "what was chosen is taken out before the second choice, and 0 means that nothing was",
    "target.layers.0.experts",
    "prefill",
    "the second choice of experts in every layer: expert 0 again",
    "rows whose best expert is 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits, k):
        return at.changed(clean(logits, k), lambda ids: np.where(ids[..., :1] == 0, 0, ids))

    alter(pipeline, "kernels.moe:top_k", change)
