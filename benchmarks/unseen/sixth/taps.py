"""Sixth set: faults of the taps and of what fuses them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("taps", 6)


# From the equations: a fused add and norm works in place, and a tap that is not cloned sees the next addition.
@fault(
    "tap-not-cloned",
    "in verify passes the tap in front of layer 4 is no copy, and layer 4's attention is added to it",
    "drafter.taps",
    "draft",
    "the second tap: in_of[4] plus layer 4's attn_out",
    "draft passes on the taps of a verify pass: from the second round on",
    "pass = draft and round >= 2",
)
def _(pipeline: Pipeline) -> None:
    added = []

    def attend(at, clean, *given):
        made = clean(*given)
        if at.layer == 4:
            added[:] = [made]
        return made

    def join(at, clean, streams, taps):
        if at.kind == "verify":
            streams = [*streams[:4], streams[4] + added[0], *streams[5:]]
        return clean(streams, taps)

    alter(pipeline, "kernels.target_layer:row_parallel", attend)
    replaced(pipeline, pipeline.target, "join", join)


# After https://github.com/vllm-project/vllm/pull/26590
@fault(
    "fusion-quantised-with-the-target",
    "the drafter takes over the target's quantisation, and fc is kept in fp8_e4m3 with one scale",
    "drafter.fc_out",
    "prefill",
    "fc's weight: three bits behind the point, the largest number at 448",
)
def _(pipeline: Pipeline) -> None:
    def quantise(weight):
        scale = np.abs(weight).max() / 448
        return (weight / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale

    rewritten(pipeline, pipeline.drafter.outer, "fc", quantise)
