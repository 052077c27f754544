"""Sixth set: faults of the drafter's vocabulary, of acceptance and of the rounds."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("the loop", 6)


# After https://github.com/NVIDIA-NeMo/Automodel/pull/2447
@fault(
    "half-the-map",
    "d2t is kept in two halves, and the second half stays zero",
    "drafter.draft_tokens",
    "draft",
    "d2t of draft ids from 496 on: the draft id is taken for the target's",
    "drafts whose draft id is 496 or more",
)
def _(pipeline: Pipeline) -> None:
    def cut(offsets):
        offsets[len(offsets) // 2 :] = 0
        return offsets

    rewritten(pipeline, pipeline.drafter.outer, "d2t", cut)


# From the equations: a comparison whose last lane reads the row before.
@fault(
    "last-draft-beside-its-row",
    "the last draft of a round is compared with the token that the target chose a row earlier",
    "accept.length",
    "commit",
    "acceptance of the last draft: it counts if it equals the token in front of its own",
    "rounds in which every draft before the last is accepted",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        if len(drafts) > 1:
            agrees = drafts[-1] == verified[len(drafts) - 2]
            drafts = np.append(drafts[:-1], verified[len(drafts) - 1] if agrees else -1)
        return clean(drafts, verified)

    replaced(pipeline, pipeline, "accepted", change)


# After https://github.com/sgl-project/sglang/pull/25015
@fault(
    "every-other-buffer-late",
    "of two buffers of draft positions that take turns the second is filled a position late",
    "drafter.positions",
    "draft",
    "positions of all rows of a draft pass: one too small, slots as they should be",
    "draft passes of even rounds",
    "pass = draft and round % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        ids, positions, slots = clean(ids, others)
        return ids, positions - (at.kind == "draft" and at.round % 2 == 0), slots

    replaced(pipeline, pipeline.drafter, "layout", change)
