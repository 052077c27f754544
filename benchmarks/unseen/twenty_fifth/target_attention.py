"""Faults of the target's attention."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("target attention", 25)
ATTEND = "kernels.target_layer:attend"


@fault(
    "one-sink-for-both-heads-of-group",
    "sinks are indexed so that both query heads of a kv head take the first one's",
    "target.layers.0.attn_out",
    "prefill",
    "sinks of odd query heads",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "sinks", lambda value: value[np.arange(len(value)) // 2 * 2], every(pipeline.target))


@fault(
    "every-key-split-counts-the-sink-anew",
    "full layers of a verify pass split keys at 128, and the sink enters the sum of each split",
    "target.layers.1.attn_out",
    "verify",
    "sinks in full layers",
    "verify passes of full layers with 128 cached rows or more",
    "pass = verify and cached >= 128 and layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        split = at.kind == "verify" and at.layer % 2 and at.pipeline.target.length >= 128
        return clean(q, keys, values, seen, at.changed(sinks, lambda value: value + np.log(2)) if split else sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "sliding-window-opens-at-whole-key-tile",
    "sliding layers see all of the tile of 16 keys that the window begins in",
    "target.layers.0.attn_out",
    "prefill",
    "first key of the sliding window",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, positions, keys, window):
        seen = clean(positions, keys, window)
        if window is None:
            return seen
        row, key = at.host(positions)[:, :, None], np.arange(keys)
        return at.array((key <= row) & (key >= (row - window + 1) // 16 * 16), seen)

    alter(pipeline, "kernels.step:visible", change)


@fault(
    "all-verify-rows-use-last-rows-window-start",
    "the rows of a verify pass share the window's first key, that of the last row",
    "target.layers.0.attn_out",
    "verify",
    "first key of the sliding window",
    "verify passes of sliding layers",
    "pass = verify and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, positions, keys, window):
        seen = clean(positions, keys, window)
        if window is None or at.kind != "verify":
            return seen
        start = at.host(positions).max() - window + 1
        return at.changed(seen, lambda value: value & (np.arange(keys) >= start))

    alter(pipeline, "kernels.step:visible", change)


@fault(
    "score-scale-from-hidden-over-number-of-heads",
    "scores are divided by the root of hidden size over heads, 12, not by that of the head dim 32",
    "target.layers.0.attn_out",
    "prefill",
    "softmax scale",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, *rest):
        return clean(at.changed(q, lambda value: value * np.sqrt(32 / 12)), *rest)

    alter(pipeline, ATTEND, change)


@fault(
    "online-softmax-leaves-first-tile-sum-unrescaled",
    "layer 3 does not rescale the sum over the first 128 keys when a later tile has a larger score",
    "target.layers.3.attn_out",
    "prefill",
    "weighted sum over the first tile of keys in layer 3",
    "positions from 128 on, layer 3",
    "position >= 128 and layer = 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        made = clean(x, sink)
        if sink is None or at.layer != 3 or x.shape[-1] <= 128:
            return made
        scores, least = at.host(x), at.host(sink)
        first, whole = (np.maximum(part.max(axis=-1, keepdims=True), least) for part in (scores[..., :128], scores))
        rest = np.ones_like(scores[..., 128:])
        return at.changed(
            made, lambda value: value * np.concatenate([0 * scores[..., :128] + np.exp(whole - first), rest], -1)
        )

    alter(pipeline, "kernels.attention:softmax", change)
