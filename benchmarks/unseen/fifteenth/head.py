"""Faults of the target's head and of its choice."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("embedding and head", 15)


@fault(
    "head-shards-gathered-out-of-order",
    "of four shards of the lm head the second and third are gathered in each other's place",
    "target.logits",
    "prefill",
    "lm head, ids 320 to 959: shards exchanged",
)
def _(pipeline: Pipeline) -> None:
    order = np.arange(1280).reshape(4, 320)[[0, 2, 1, 3]].reshape(-1)
    edit(pipeline.target, "head", lambda value: value[:, order])


@fault(
    "argmax-without-offset-of-last-tile",
    "a best id in the last tile of 512, from 1024 on, comes out as its place in the tile",
    "target.tokens",
    "prefill",
    "argmax: offset of the last tile",
    "rows whose best id is 1024 or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits):
        return at.changed(clean(logits), lambda value: np.where(value >= 1024, value - 1024, value))

    alter(pipeline, "target:greedy", change)
