"""Fourteenth set: a fault of the target's head."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("the head", 14)


# From the equations: indices of the rows that need logits, counted from 1.
@fault(
    "logits-begin-a-row-late",
    "rows of a verify pass that need logits are gathered by indices that begin at 1, the last held at the end",
    "verify.logits",
    "verify",
    "input of the target's head: the final norm's output of the row behind",
    "verify rows but the last",
    "pass = verify and row < 4",
)
def _(pipeline: Pipeline) -> None:
    def late(rows):
        return rows[:, np.minimum(np.arange(rows.shape[1]) + 1, rows.shape[1] - 1)]

    def change(at, clean, x, weight):
        return clean(at.changed(x, late) if at.kind == "verify" else x, weight)

    alter(pipeline, "target:linear", change)
