"""Faults of the taps' fusion, and of what stands for taps in masked rows."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("taps and fuse")
FUSE = "peagle:fuse"
WIDTH = 96
"""Of one tap."""


@fault(
    "mask-chunks-exchanged",
    "the first two thirds of the learnt mask hidden are exchanged",
    "drafter.fc_out",
    "draft",
    "mask_hidden, chunks 0 and 1",
    "masked rows",
)
def _(pipeline: Pipeline) -> None:
    def exchanged(value):
        return np.concatenate([value[..., WIDTH : 2 * WIDTH], value[..., :WIDTH], value[..., 2 * WIDTH :]], axis=-1)

    edit(pipeline.drafter, "mask_hidden", exchanged)


@fault(
    "fc-contraction-tail",
    "fc skips its inputs behind the second tile of 128",
    "drafter.fc_out",
    "prefill",
    "fc, inputs 256 to 287",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "fc", lambda value: np.where(np.arange(3 * WIDTH)[:, None] < 256, value, 0.0))


@fault(
    "fc-chunk-sums-rounded",
    "fc rounds each of the three taps' partial sums to bfloat16",
    "drafter.fc_out",
    "prefill",
    "fc's contraction",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    from ml_dtypes import bfloat16

    def change(at, clean, taps, mask_hidden, committed, fc):
        def parts(value):
            zero = np.zeros_like(value)
            for chunk in range(3):
                alone = zero.copy()
                alone[..., chunk * WIDTH : (chunk + 1) * WIDTH] = value[..., chunk * WIDTH : (chunk + 1) * WIDTH]
                yield alone

        hosts = zip(parts(at.host(taps)), parts(at.host(mask_hidden)), strict=True)
        made = [clean(at.array(one, taps), at.array(mask, mask_hidden), committed, fc) for one, mask in hosts]
        total = sum(at.host(one).astype(bfloat16).astype(np.float32) for one in made)
        return at.array(total, taps)

    alter(pipeline, FUSE, change)


@fault(
    "last-mask-row-takes-a-tap",
    "the last masked row has the last committed row's fused hidden",
    "drafter.fc_out",
    "draft",
    "fused hidden of the last masked row",
    "last row of draft passes",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        def taken(value):
            value[:, at.committed + at.masked - 1] = value[:, at.committed - 1]
            return value

        made = clean(*given)
        return at.changed(made, taken) if at.masked else made

    alter(pipeline, FUSE, change)


@fault(
    "mask-hidden-mixed-with-tap",
    "the learnt mask hidden is averaged with the last committed tap",
    "drafter.fc_out",
    "draft",
    "input of fc in masked rows",
    "masked rows behind two committed rows or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, mask_hidden, committed, fc):
        if at.committed < 2:
            return clean(taps, mask_hidden, committed, fc)
        last = at.host(taps)[:, at.committed - 1 : at.committed]
        return clean(taps, at.changed(mask_hidden, lambda value: (value + last) / 2), committed, fc)

    alter(pipeline, FUSE, change)
