"""Faults of the target's attention: scale, sinks, windows, output projection."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("target attention", 27)
PLACE = "kernels.attention:softmax"


@fault(
    "softmax-scale-from-hidden-over-heads",
    "scores are divided by the root of hidden size over heads (12), not of the head dim (32)",
    "target.layers.0.attn_out",
    "prefill",
    "softmax scale of every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, *rest):
        return clean(at.changed(q, lambda value: value * (32 / 12) ** 0.5), *rest)

    alter(pipeline, "kernels.target_layer:attend", change)


@fault(
    "sink-exponent-without-running-maximum",
    "the sink enters the denominator as exp(sink), the row's maximum not subtracted",
    "target.layers.0.attn_out",
    "prefill",
    "sink term of the softmax",
)
def _(pipeline: Pipeline) -> None:
    def change(_, clean, x, sink=None):
        if sink is None:
            return clean(x, sink)
        parts = np.exp(x - np.max(x, axis=-1, keepdims=True))
        return parts / (np.sum(parts, axis=-1, keepdims=True) + np.exp(sink.astype(np.float32)))

    alter(pipeline, PLACE, change)


@fault(
    "stacked-sinks-index-of-layer-before",
    "from layer 1 on each layer has the sinks of the layer before",
    "target.layers.1.attn_out",
    "prefill",
    "sinks of layers 1 to 7",
)
def _(pipeline: Pipeline) -> None:
    at, layers = moment(pipeline), pipeline.target.layers
    held = [at.host(layer["sinks"]) for layer in layers]
    for number in range(1, len(layers)):
        edit(pipeline.target, "sinks", lambda value, number=number: held[number - 1], [number])


@fault(
    "sink-counted-once-per-key-split",
    "each split of 128 keys adds the sink once more to the denominator",
    "target.layers.1.attn_out",
    "prefill",
    "combination of key splits, full layers",
    "rows of full layers that see more than 128 keys",
    "position >= 128 and layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(_, clean, x, sink=None):
        if sink is None:
            return clean(x, sink)
        splits = -(-np.maximum(np.sum(x > -1e29, axis=-1, keepdims=True), 1) // 128)
        return clean(x, sink.astype(np.float32) + np.log(splits).astype(np.float32))

    alter(pipeline, PLACE, change)


@fault(
    "window-start-rounded-down-to-tile",
    "sliding layers begin at the tile of 16 keys that holds the window's first key, and do not mask within it",
    "target.layers.0.attn_out",
    "prefill",
    "first tile of the sliding window",
)
def _(pipeline: Pipeline) -> None:
    def change(_, clean, positions, keys, window):
        if window is None:
            return clean(positions, keys, window)
        first = np.maximum(positions - window + 1, 0) // 16 * 16
        return np.logical_and(clean(positions, keys, None), np.arange(keys) >= first[:, :, None])

    alter(pipeline, "kernels.step:visible", change)


@fault(
    "verify-rows-share-first-window-start",
    "in verify passes the window of every row begins where that of the first row does",
    "target.layers.0.attn_out",
    "verify",
    "sliding window of verify rows behind the first",
    "verify rows behind the first, sliding layers",
    "pass = verify and row > 0 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, positions, keys, window):
        if window is None or at.kind != "verify":
            return clean(positions, keys, window)
        first = positions[:, :1] - window + 1
        return np.logical_and(clean(positions, keys, None), np.arange(keys) >= first[:, :, None])

    alter(pipeline, "kernels.step:visible", change)


@fault(
    "output-projection-last-contraction-tile-lost",
    "the last 16 of 256 inputs of the output projection are not summed",
    "target.layers.0.attn_out",
    "prefill",
    "output projection's inputs 240 to 255, half of head 7",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "o", lambda value: value * (np.arange(256) < 240)[:, None], every(pipeline.target))


@fault(
    "output-bias-in-first-row-tile-alone",
    "rows of a prefill behind the first tile of 64 do not get the output projection's bias",
    "target.layers.0.attn_out",
    "prefill",
    "output bias of later row tiles",
    "prefill rows from 64 on",
    "pass = prefill and row >= 64",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias=None):
        made = clean(x, weight, bias)
        late = (np.arange(x.shape[1]) >= 64)[None, :, None]
        return np.where(late, clean(x, weight, None), made) if at.kind == "prefill" else made

    alter(pipeline, "kernels.target_layer:row_parallel", change)
