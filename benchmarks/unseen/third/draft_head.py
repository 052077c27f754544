"""Third set: faults of the draft's head and choice."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft heads", 3)
LINEAR = "drafter:linear"


@fault(
    "last-tile-adds-up-over-drafts",
    "the last tile of draft logits, ids 896 to 991, is added to that of the drafts before",
    "drafter.logits",
    "draft",
    "draft logits 896 to 991",
    "all drafts of a round but the first",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        def added(value):
            value[..., 896:] = np.cumsum(value[..., 896:], axis=1)
            return value

        return at.changed(clean(x, weight), added)

    alter(pipeline, LINEAR, change)


@fault(
    "draft-head-in-ten-bits",
    "the draft head multiplies numbers of ten bits of mantissa",
    "drafter.logits",
    "draft",
    "operands of the draft head",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def short(value):
        bits = value.astype(np.float32).view(np.uint32) + np.uint32(0x1000)
        return (bits & np.uint32(0xFFFFE000)).view(np.float32)

    def change(at, clean, x, weight):
        return clean(at.changed(x, short), at.changed(weight, short))

    alter(pipeline, LINEAR, change)


@fault(
    "repeated-draft-replaced",
    "a draft that repeats the one before it gives way to the second best",
    "drafter.draft_tokens",
    "draft",
    "choice of a draft equal to the one before",
    "drafts whose best id is that of the draft before",
    "pass = draft",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits):
        made, second = clean(logits), np.argsort(at.host(logits), axis=-1)[..., -2]

        def other(value):
            again = np.zeros(value.shape, bool)
            again[:, 1:] = value[:, 1:] == value[:, :-1]
            return np.where(again, second, value)

        return at.changed(made, other)

    alter(pipeline, "drafter:greedy", change)
