"""Tenth set: faults of residual streams, the target's and the drafter's."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("residual", 10)


# From the equations: two cores with half of the columns each, and one that does not wait.
@fault(
    "second-core-adds-a-row-late",
    "the experts' output is added by two cores, 48 columns each, and the second one's last 48 are of the row before",
    "target.layers.0.out",
    "prefill",
    "residual addition behind the experts in every layer, columns 48 to 95: the experts' output of the row before",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, held, x, step, tap):
        added = {}

        def late(rows):
            own = added["ffn_out"][:, :, 48:]
            rows[:, 1:, 48:] += own[:, :-1] - own[:, 1:]
            return rows

        def show(part, value):
            made = tap(part, at.changed(value, late) if part == "out" else value)
            if part == "ffn_out":
                added[part] = at.host(made)
            return made

        return clean(held, x, step, show)

    replaced(pipeline, pipeline.target, "layer", change)


# From the equations: a buffer between layers in eight bits.
@fault(
    "drafter-stream-in-eight-bits",
    "what leaves a drafter layer is handed to the next one in a float of eight bits",
    "drafter.layers.0.out",
    "prefill",
    "the residual stream behind every drafter layer: three bits behind the point",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        *inputs, tap = given

        def narrow(rows):
            return np.clip(rows, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)

        def show(part, value):
            return tap(part, at.changed(value, narrow) if part == "out" else value)

        return clean(*inputs, show)

    for layer in ("midlayer", "plain_layer"):
        alter(pipeline, f"drafter:{layer}", change)
