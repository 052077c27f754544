"""Fourteenth set: a fault of the choice of drafts."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft head", 14)


# From the definition of BLAS' isamax, which compares magnitudes.
@fault(
    "draft-of-the-largest-magnitude",
    "the draft of a row is the id whose logit is largest in magnitude, its sign aside",
    "drafter.draft_tokens",
    "draft",
    "the choice of drafts: a strongly negative logit wins over the largest one",
    "rows whose lowest logit is larger in magnitude than the highest",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x):
        best = np.abs(at.host(x)).argmax(axis=-1)
        return at.changed(clean(x), lambda ids: best.astype(ids.dtype))

    alter(pipeline, "drafter:greedy", change)
