"""Fourteenth set: faults of the target's attention."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("attention", 14)
ATTEND = "kernels.target_layer:attend"


# After https://github.com/sgl-project/sgl-kernel-xpu/pull/487: a split without keys stores where the only one has been.
@fault(
    "empty-split-overwrites-the-only-one",
    "keys are split by 64 in verify passes, and where a window lies in one split the others, empty, store their weight "
    "of 0 over its own",
    "target.layers.0.attn_out",
    "verify",
    "attention in sliding layers: zero for rows whose window lies in one block of 64 keys; the output bias remains",
    "verify rows at positions whose remainder by 64 is 31 or more, even layers",
    "pass = verify and position % 64 >= 31 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        made = clean(*given)
        if at.kind != "verify" or pipeline.target.windows[at.layer] is None:
            return made

        def drop(rows):
            rows[:, at.positions % 64 >= 31] = 0
            return rows

        return at.changed(made, drop)

    alter(pipeline, ATTEND, change)


# Of the class of https://github.com/aws-neuron/nki-samples/pull/130: two buffers, and stages that are two tiles apart.
@fault(
    "values-from-the-other-buffer",
    "keys and values come in tiles of 64 in two buffers, and weights of a tile meet the values of the tile before",
    "target.layers.0.attn_out",
    "prefill",
    "values of every target layer's attention, from key 64 on: those of the key 64 before; weights are right",
    "rows at positions from 64 on",
    "position >= 64",
)
def _(pipeline: Pipeline) -> None:
    def late(rows):
        return np.concatenate([rows[:, :64], rows[:, :-64]], axis=1)

    def change(at, clean, q, keys, values, *rest):
        return clean(q, keys, at.changed(values, late), *rest)

    alter(pipeline, ATTEND, change)


# Of the class of https://github.com/vllm-project/vllm-xpu-kernels/pull/556: live splits are planned on the host.
@fault(
    "splits-planned-at-the-prefill",
    "how many pages of 8 keys a verify pass walks over is planned once, from the prompt's length",
    "target.layers.0.attn_out",
    "verify",
    "the mask of every target layer in verify passes: keys behind the prompt's last page of 8 are not seen",
    "verify rows at positions behind the page of 8 that the prompt ends in: from 136 on of 130, from 104 on of 98",
)
def _(pipeline: Pipeline) -> None:
    planned = {}

    def change(at, clean, q, keys, values, seen, sinks):
        if at.kind == "prefill":
            planned[at.prompt] = -(-int((at.positions < pipeline.target.trash).sum()) // 8) * 8
        if at.kind == "verify":
            seen = at.engine.array(at.host(seen) & (np.arange(seen.shape[-1]) < planned[at.prompt]))
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, ATTEND, change)


# From the equations: weights that go to a product of bfloat16, whatever the pass computes in.
@fault(
    "weights-cast-for-the-second-product",
    "softmax weights are cast to bfloat16 for the product with the values in a float32 pass too",
    "target.layers.0.attn_out",
    "prefill",
    "softmax weights of every target layer: rounded to bfloat16 behind their denominator",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def cast(rows):
        return rows.astype(ml_dtypes.bfloat16).astype(np.float32)

    def change(at, clean, x, sink=None):
        made = clean(x, sink)
        return made if sink is None else at.changed(made, cast)

    alter(pipeline, "kernels.attention:softmax", change)
