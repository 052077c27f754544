"""Ninth set: faults of the target's attention."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("attention", 9)
ATTEND = "kernels.target_layer:attend"


# After https://github.com/vllm-project/vllm-gaudi/pull/1395
@fault(
    "boundary-page-dropped",
    "verify passes read window / page = 2 pages of 16 keys in sliding layers, and the window's part of a third is lost",
    "target.layers.0.attn_out",
    "verify",
    "the mask of sliding layers in verify passes: keys in front of the page before the row's own are not seen",
    "verify passes, even layers, rows whose position is not the last of a page of 16",
    "pass = verify and layer % 2 = 0 and position % 16 != 15",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        if at.kind == "verify" and pipeline.target.windows[at.layer] is not None:
            first = (at.positions // 16 - 1) * 16
            seen = at.engine.array(at.host(seen) & (np.arange(seen.shape[-1]) >= first[:, None]))
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, ATTEND, change)


# From the equations: an exponential whose table does not reach far enough.
@fault(
    "exponential-ends-at-minus-six",
    "the softmax's exponential takes no argument below -6, and a faint key weighs exp(-6) of the strongest",
    "target.layers.0.attn_out",
    "prefill",
    "the target's softmax: scores more than 6 below the row's largest count as 6 below it, masked ones not at all",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        if sink is None:
            return clean(x, sink)
        scores = at.host(x)
        top = np.maximum(scores.max(axis=-1, keepdims=True), at.host(sink))
        return clean(at.array(np.where(scores > -1e29, np.maximum(scores, top - 6), scores), x), sink)

    alter(pipeline, "kernels.attention:softmax", change)


# From the equations: an index into a stacked parameter that is raised before it is read.
@fault(
    "sinks-of-the-layer-behind",
    "sinks of all layers lie in one array, and a layer reads those of the layer behind it, the last one its own",
    "target.layers.0.attn_out",
    "prefill",
    "sinks of layers 0 to 6: those of the next layer",
)
def _(pipeline: Pipeline) -> None:
    for layer, behind in pairwise(pipeline.target.layers):
        layer["sinks"] = behind["sinks"]


# After https://github.com/kvcache-ai/sglang/pull/31
@fault(
    "own-keys-before-rotation",
    "rotated keys go into the cache alone, and attention takes the pass' own keys from where they did not turn",
    "target.layers.0.attn_out",
    "prefill",
    "keys of a pass' own rows in its attention: not rotated, without YaRN's magnitude; those of the cache are right",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        def back(rows):
            inside = at.positions < rows.shape[1]
            cos, sin = (at.host(one)[0, inside][:, None] for one in (at.step.cos, at.step.sin))
            own = rows[0, at.positions[inside]]
            half = own.shape[-1] // 2
            first, second = own[..., :half], own[..., half:]
            turned = np.concatenate([first * cos + second * sin, second * cos - first * sin], axis=-1)
            rows[0, at.positions[inside]] = turned / np.concatenate([cos**2 + sin**2] * 2, axis=-1)
            return rows

        return clean(q, at.changed(keys, back), values, seen, sinks)

    alter(pipeline, ATTEND, change)


# From the equations: a permutation for the rotation's layout, and a matrix that is not rotated.
@fault(
    "values-permuted-as-keys",
    "a loader reorders each head's columns for another layout of the rotation, and does so to values too",
    "target.layers.0.v",
    "prefill",
    "columns of each value head in every layer: 0, 16, 1, 17 and so on; the output projection takes them in order",
)
def _(pipeline: Pipeline) -> None:
    dim = pipeline.target.config.attention.head_dim
    order = np.arange(dim).reshape(2, -1).T.ravel()

    def reorder(weight):
        return weight.reshape(*weight.shape[:-1], -1, dim)[..., order].reshape(weight.shape)

    for layer in pipeline.target.layers:
        for name in ("v", "v_bias"):
            rewritten(pipeline, layer, name, reorder)
