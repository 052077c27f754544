"""Tenth set: faults of the target's attention."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("attention", 10)
ATTEND = "kernels.target_layer:attend"


# After https://github.com/vllm-project/vllm-metal/pull/550: of a kernel's three paths with sinks one was right.
@fault(
    "sinks-not-in-the-window-path",
    "a row whose window has left keys behind takes another path through the kernel, which is not given the sinks",
    "target.layers.0.attn_out",
    "prefill",
    "the sinks of sliding layers: they take no weight away",
    "rows at positions from 32 on, even layers",
    "position >= 32 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        made = clean(q, keys, values, seen, sinks)
        if pipeline.target.windows[at.layer] is None:
            return made
        bare = at.host(clean(q, keys, values, seen, None))
        far = (at.positions >= 32) & (at.positions < pipeline.target.trash)
        return at.changed(made, lambda rows: np.where(far[:, None], bare, rows))

    alter(pipeline, ATTEND, change)


# From the equations: an accumulator in the dtype of what it adds up.
@fault(
    "values-add-up-in-bfloat16",
    "weighted values are summed 32 keys at a time, and the sum over these tiles is kept in bfloat16",
    "target.layers.0.attn_out",
    "prefill",
    "the sum of weighted values in every target layer: rounded to bfloat16 behind each tile of 32 keys",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        total = np.float32(0)
        held = at.host(values)
        for first in range(0, held.shape[1], 32):
            inside = (np.arange(held.shape[1]) // 32 * 32 == first)[:, None, None]
            part = clean(q, keys, at.array(np.where(inside, held, np.float32(0)), values), seen, sinks)
            total = (total + at.host(part)).astype(ml_dtypes.bfloat16).astype(np.float32)
        return at.array(total, q)

    alter(pipeline, ATTEND, change)


# From the equations: a threshold that short contexts never meet.
@fault(
    "faint-weights-flushed",
    "softmax weights below 1/256 are taken for nothing, so that their keys can be skipped",
    "target.layers.0.attn_out",
    "prefill",
    "softmax weights of every target layer: those below 1/256 are 0, the others as they are",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        made = clean(x, sink)
        if sink is None:
            return made
        return at.changed(made, lambda weights: np.where(weights < 1 / 256, np.float32(0), weights))

    alter(pipeline, "kernels.attention:softmax", change)


# From the equations: activations in integers, with one scale for all of a pass.
@fault(
    "attention-input-in-eight-bits",
    "the input of q, k and v is turned into integers of eight bits with one scale a pass, whose largest row sets it",
    "target.layers.0.v",
    "prefill",
    "the input of q, k and v in every target layer: in steps of 1/127 of the largest number of its pass",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        def stepped(rows):
            step = np.abs(rows).max() / np.float32(127)
            return np.round(rows / step) * step

        return clean(at.changed(x, stepped), weight, bias)

    alter(pipeline, "kernels.target_layer:linear", change)


# Of a setting of another family, `max_window_layers`: layers from this number on have no window.
@fault(
    "window-ends-at-layer-six",
    "layers from the sixth on are taken for full ones, by a setting of another family of models",
    "target.layers.6.attn_out",
    "prefill",
    "the mask of layer 6: it has no window, keys 32 positions back and more are seen",
    "rows at positions from 32 on, layer 6",
    "position >= 32 and layer = 6",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        return clean(q, keys, values, at.step.seen[None] if at.layer == 6 else seen, sinks)

    alter(pipeline, ATTEND, change)
