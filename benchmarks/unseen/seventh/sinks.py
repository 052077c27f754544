"""Seventh set: faults of the target's attention that its sinks bring out."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.unseen.moments import alter, moment, replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("sinks", 7)


# After https://github.com/NVIDIA/TensorRT-LLM/pull/19220
@fault(
    "sink-again-behind-an-empty-tile",
    "rows of a verify pass share tiles of 8 keys, and one whose window misses the first adds its sink twice",
    "target.layers.0.attn_out",
    "verify",
    "the sinks' weight in sliding layers: twice what it should be",
    "verify rows whose window begins in a later tile of 8 keys than the first row's, even layers",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        window = pipeline.target.windows[at.layer]
        if sink is None or window is None or at.kind != "verify":
            return clean(x, sink)
        tiles = np.maximum(at.positions - window + 1, 0) // 8
        twice = np.where(tiles > tiles[0], np.float32(math.log(2)), np.float32(0))[:, None]
        return clean(x, at.engine.array(at.host(sink) + twice))

    alter(pipeline, "kernels.attention:softmax", change)


# From the equations: keys less their mean leave a softmax as it is, but for a sink that nothing is taken from.
@fault(
    "keys-smoothed-beside-a-sink",
    "keys are taken less their mean over the sequence, as a kernel in eight bits wants them, and the sinks are not",
    "target.layers.0.attn_out",
    "prefill",
    "scores of the target's attention against its sinks: lower by the query's product with the mean key",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        rows = 1 + max(one for one in at.positions.tolist() if one != pipeline.target.trash)
        wide = at.host(keys)
        wide = wide - wide[:, :rows].mean(axis=1, keepdims=True)
        return clean(q, at.engine.array(wide), values, seen, sinks)

    alter(pipeline, "kernels.target_layer:attend", change)


# After https://github.com/lightseekorg/tokenspeed/pull/571 and https://github.com/pytorch/torchtitan/pull/2211
@fault(
    "sink-against-a-binary-logarithm",
    "attention's output is gated by sigmoid(lse - sink), and lse is a logarithm to the base of 2",
    "target.layers.0.attn_out",
    "prefill",
    "what the sinks leave of the target's attention: the sum of exponentials counts as 1.44 times its logarithm",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        if sink is None:
            return clean(x, sink)
        scores = at.host(x)
        top = scores.max(axis=-1, keepdims=True)
        lse = top + np.log(np.exp(scores - top).sum(axis=-1, keepdims=True))
        gate = 1 / (1 + np.exp(at.host(sink) - lse / np.float32(math.log(2))))
        return at.engine.array((at.host(clean(x)) * gate).astype(np.float32))

    alter(pipeline, "kernels.attention:softmax", change)


# From the equations: weights that sum to 1 let a bias of the values pass through, and with sinks they do not.
@fault(
    "value-bias-behind-the-weights",
    "the value bias is added to attention's output, as if the softmax weights summed to 1",
    "target.layers.0.attn_out",
    "prefill",
    "the value bias in the target's attention: the share that the sinks take away from it stays",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        ones = at.changed(values, np.ones_like)
        left = 1 - at.host(clean(q, keys, ones, seen, sinks))
        groups, dim = values.shape[2:]
        bias = at.host(pipeline.target.layers[at.layer]["v_bias"]).reshape(groups, 1, dim)
        each = np.repeat(bias, q.shape[2] // groups, axis=1).reshape(-1)
        return at.changed(clean(q, keys, values, seen, sinks), lambda mixed: mixed + left * each)

    alter(pipeline, "kernels.target_layer:attend", change)


# After https://github.com/tenstorrent/tt-metal/pull/50223: sinks made ready for a kernel, here whenever a text begins.
@fault(
    "sinks-made-ready-again",
    "sinks are divided by the scores' scale in place for a kernel that multiplies them by it, once for each sequence",
    "target.layers.0.attn_out",
    "prefill",
    "sinks of every target layer: the square root of 32 times too large in the second sequence",
    "the second prompt and those behind it",
    "prompt >= 2",
)
def _(pipeline: Pipeline) -> None:
    root = np.float32(pipeline.target.config.attention.head_dim**0.5)
    began = moment(pipeline)

    def change(at, clean, *arguments):
        if began.prompt:
            for layer in pipeline.target.layers:
                rewritten(pipeline, layer, "sinks", lambda sinks: sinks * root)
        return clean(*arguments)

    replaced(pipeline, pipeline, "prefill", change)
