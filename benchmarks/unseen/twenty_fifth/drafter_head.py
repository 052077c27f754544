"""Faults of the draft head and of what it chooses."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("draft head and choice", 25)


@fault(
    "draft-head-columns-behind-960-zero",
    "the last 32 columns of the draft head, behind whole tiles of 64, are not loaded",
    "drafter.logits",
    "draft",
    "the draft head's weight, ids 960 to 991",
)
def _(pipeline: Pipeline) -> None:
    def cut(value):
        value[:, 960:] = 0
        return value

    rewritten(pipeline, pipeline.drafter.outer, "head", cut)


@fault(
    "final-draft-read-one-row-early",
    "the last draft of a round is read from the row of the draft before it",
    "drafter.pre_head_hidden",
    "draft",
    "row of the last draft in front of the head",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, committed, k, record):
        def early(value):
            if k > 1:
                value[:, committed + k - 2] = value[:, committed + k - 3]
            return value

        return clean(at.changed(x, early), committed, k, record)

    replaced(pipeline, pipeline.drafter, "choose", change)


@fault(
    "argmax-of-second-half-without-base",
    "the argmax over two blocks of 512 draft ids does not add 512 in the second one",
    "drafter.draft_tokens",
    "draft",
    "draft ids of the argmax's second block",
    "drafts whose draft id is 512 or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits):
        return at.changed(clean(logits), lambda ids: np.where(ids >= 512, ids - 512, ids))

    alter(pipeline, "drafter:greedy", change)
