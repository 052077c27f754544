"""Faults of the draft head and of the choice of drafts."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("draft head", 20)
TILE = 512
"""Logits of which one step of the argmax takes the largest."""


@fault(
    "draft-head-last-tile-unwritten",
    "the draft head writes whole tiles of 128 columns: logits of the last 96 draft ids stay zero",
    "drafter.logits",
    "draft",
    "draft logits of ids 896 to 991",
)
def _(pipeline: Pipeline) -> None:
    def cut(value):
        value = value.copy()
        value[:, 896:] = 0
        return value

    rewritten(pipeline, pipeline.drafter.outer, "head", cut)


@fault(
    "argmax-without-tile-offset",
    "the draft's argmax goes tile by tile and gives the place within the tile of 512: its start is not added",
    "drafter.draft_tokens",
    "draft",
    "draft ids of 512 and more",
    "rows whose best draft id is 512 or more",
)
def _(pipeline: Pipeline) -> None:
    alter(pipeline, "drafter:greedy", lambda at, clean, logits: at.changed(clean(logits), lambda ids: ids % TILE))


@fault(
    "drafts-never-repeat",
    "a sampler's rule against repeats is left on in the drafter: a draft like that before gives way to the next best",
    "drafter.draft_tokens",
    "draft",
    "choice of drafts",
    "rows whose best draft is the draft of the row before",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits):
        scores = at.host(logits)[0]

        def apart(ids):
            ids = ids.copy()
            for row in range(1, len(scores)):
                best, second = np.argsort(-scores[row], kind="stable")[:2]
                ids[0, row] = second if best == ids[0, row - 1] else best
            return ids

        return at.changed(clean(logits), apart)

    alter(pipeline, "drafter:greedy", change)
