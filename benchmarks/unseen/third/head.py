"""Third set: faults of the target's head."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("embedding and head", 3)
LINEAR = "target:linear"


@fault(
    "halves-gathered-along-rows",
    "the two shards of 640 logits are gathered behind each other, and read as rows of 1280",
    "target.logits",
    "prefill",
    "gathered logits of every row",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        def gathered(value):
            return np.stack([value[..., :640], value[..., 640:]]).reshape(value.shape)

        return at.changed(clean(x, weight), gathered)

    alter(pipeline, LINEAR, change)


@fault(
    "repetition-penalty-left-on",
    "verify logits of ids that the text holds are made smaller by a repetition penalty of 1.1",
    "verify.logits",
    "verify",
    "logits of ids that the text holds",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        def penalised(value):
            said = np.isin(np.arange(value.shape[-1]), pipeline._text)
            return np.where(said, np.where(value > 0, value / 1.1, value * 1.1), value)

        made = clean(x, weight)
        return at.changed(made, penalised) if at.kind == "verify" else made

    alter(pipeline, LINEAR, change)
