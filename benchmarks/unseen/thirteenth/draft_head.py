"""Thirteenth set: faults of the draft head and of what follows it."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft head", 13)


# From the equations: the best K of each row, of which a row's number picks one.
@fault(
    "draft-of-its-row-s-rank",
    "each row's four best ids are found, and the draft of a row is read at the row's number among them",
    "drafter.draft_tokens",
    "draft",
    "the choice of drafts: the second best id of row 1, the third best of row 2, the fourth best of row 3",
    "all drafts of a round but the first",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x):
        order = np.argsort(-at.host(x), axis=-1, kind="stable")[0]
        return at.changed(clean(x), lambda ids: np.diagonal(order)[None, : ids.shape[1]].astype(ids.dtype))

    alter(pipeline, "drafter:greedy", change)


# From the equations: an axis that a gather joins in front, and a reshape that takes it for the last.
@fault(
    "two-ranks-logits-in-turn",
    "two ranks have half of the draft ids each, and the gather puts their logits in turn",
    "drafter.logits",
    "draft",
    "draft logits: id j has that of id 496 (j mod 2) + j div 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        ids = np.arange(weight.shape[-1])
        return at.changed(clean(x, weight), lambda rows: rows[..., ids % 2 * (len(ids) // 2) + ids // 2])

    alter(pipeline, "drafter:linear", change)
