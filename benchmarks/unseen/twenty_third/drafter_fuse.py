"""Faults of the drafter's fc and of the learnt hidden of masked rows."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("drafter fuse", 23)
WIDTH = 96
"""Of one tap."""


@fault(
    "fc-weight-in-fp8-by-tensor",
    "fc is loaded in fp8 (e4m3) with one scale for the whole weight",
    "drafter.fc_out",
    "prefill",
    "precision of fc's weight",
)
def _(pipeline: Pipeline) -> None:
    def narrow(value):
        scale = np.abs(value).max() / 448
        return (value / scale).astype(float8_e4m3fn).astype(np.float32) * scale

    rewritten(pipeline, pipeline.drafter.outer, "fc", narrow)
