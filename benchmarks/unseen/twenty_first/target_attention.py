"""Faults of the target's attention: softmax, sinks, masks and the way out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import during, instead
from parity.device.kernels.attention import MASKED
from parity.device.pipeline import Pipeline

fault = Part("attention of the target", 21)
OUT, SOFTMAX = "target.layers.0.attn_out", "kernels.attention:softmax"
TILE, SPLIT = 64, 128


@fault(
    "weights-of-values-in-e4m3",
    "softmax weights are cast to e4m3 before they multiply the values",
    OUT,
    "prefill",
    "softmax weights of every layer: their dtype at the product with the values",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink):
        made = clean(x, sink)
        return made if sink is None else at.changed(made, lambda value: value.astype(float8_e4m3fn).astype(np.float32))

    alter(pipeline, SOFTMAX, change)


@fault(
    "sink-beside-the-maximum",
    "the sink's exponential joins the denominator without the row's maximum subtracted",
    OUT,
    "prefill",
    "softmax of every layer: the sink's term in the denominator",
)
def _(pipeline: Pipeline) -> None:
    def make(clean):
        def softmax(x, sink=None):
            if sink is None:
                return clean(x)
            parts = np.exp(x - np.max(x, axis=-1, keepdims=True))
            return parts / (np.sum(parts, axis=-1, keepdims=True) + np.exp(sink.astype(np.float32)))

        return softmax

    during(pipeline, SOFTMAX, make)


@fault(
    "heads-flattened-group-last",
    "attention's result is flattened with the kv head behind the query's place in its group",
    OUT,
    "prefill",
    "order of heads at the output projection of every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        batch, rows, width = x.shape
        heads = x.reshape(batch, rows, 4, 2, width // 8).transpose(0, 1, 3, 2, 4)
        return clean(heads.reshape(batch, rows, width), weight, bias)

    alter(pipeline, "kernels.target_layer:row_parallel", change)


def masking(pipeline, change):
    """Masks of each target pass are `change(at, positions [S, 1], keys [P], seen, window)`, on the host."""
    at = moment(pipeline)

    def make(clean):
        def step(rows):
            made = clean(rows)
            positions, keys = rows.positions[0][:, None], np.arange(made.span)
            seen = {
                window: at.engine.array(change(at, positions, keys, at.host(one)[0], window)[None])
                for window, one in made.seen.items()
            }
            return replace(made, seen=seen)

        return step

    instead(pipeline.target, "step", make)


@fault(
    "one-window-for-a-verify-pass",
    "a verify pass has one beginning of the window, that of its first row: later rows see keys that have left theirs",
    OUT,
    "verify",
    "window mask of the sliding layers",
    "verify rows behind the first, sliding layers",
    "pass = verify and row > 0 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, positions, keys, seen, window):
        if at.kind != "verify" or window is None:
            return seen
        return (keys <= positions) & (keys > positions[0] - window)

    masking(pipeline, change)


@fault(
    "causal-bound-at-tile-start",
    "the loop over key tiles ends at the position rounded up to 64: a row that begins a tile does not see itself",
    OUT,
    "prefill",
    "causal mask of every layer",
    "rows at positions that are multiples of 64",
    "position % 64 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, positions, keys, seen, window):
        return seen & (keys < -(-positions // TILE) * TILE)

    masking(pipeline, change)


@fault(
    "splits-merged-without-their-maxima",
    "with 128 cached rows or more a verify pass splits its keys there, and adds up both parts without their maxima",
    OUT,
    "verify",
    "softmax of every layer: the rescaling of each split by its maximum",
    "verify passes behind 128 cached rows or more",
    "pass = verify and cached >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink):
        if sink is None or at.kind != "verify" or at.pipeline.target.length < SPLIT:
            return clean(x, sink)
        scores, last = at.host(x), at.host(sink)
        first = scores[..., :SPLIT].max(axis=-1, keepdims=True)
        second = np.maximum(scores[..., SPLIT:].max(axis=-1, keepdims=True), last)
        tops = np.where(np.arange(scores.shape[-1]) < SPLIT, first, second)
        parts = np.exp(scores - tops) * (scores > MASKED / 2)
        return at.array(parts / (parts.sum(axis=-1, keepdims=True) + np.exp(last - second)), x)

    alter(pipeline, SOFTMAX, change)
