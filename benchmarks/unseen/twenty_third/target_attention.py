"""Faults of the target's attention: scale, sinks, softmax, order of heads, key tiles."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target attention", 23)
ATTEND, SOFTMAX, OUT = "kernels.target_layer:attend", "kernels.attention:softmax", "target.layers.0.attn_out"


@fault(
    "score-scale-from-hidden-over-heads",
    "scores are divided by the root of hidden size over heads, 12, not of the head dimension, 32",
    OUT,
    "prefill",
    "scale of the attention scores",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, *rest):
        return clean(at.changed(q, lambda value: value * (32 / 12) ** 0.5), *rest)

    alter(pipeline, ATTEND, change)


@fault(
    "sink-term-not-shifted",
    "the sink enters the softmax's sum as exp(sink), not as exp(sink - maximum)",
    OUT,
    "prefill",
    "sink's term in the softmax's sum",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        if sink is None:
            return clean(x)
        wide, sink = at.host(x), at.host(sink)
        parts = np.exp(wide - np.maximum(wide.max(-1, keepdims=True), sink))
        return at.array(parts / (parts.sum(-1, keepdims=True) + np.exp(sink)), x)

    alter(pipeline, SOFTMAX, change)


@fault(
    "heads-stored-group-last",
    "the kernel stores its heads with the place within a group outside and the group inside",
    OUT,
    "prefill",
    "order of heads in front of the output projection",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        def turned(value):
            return value.reshape(*value.shape[:2], 4, 2, 32).swapaxes(2, 3).reshape(value.shape)

        return at.changed(clean(*given), turned)

    alter(pipeline, ATTEND, change)


@fault(
    "sink-in-every-split-of-verify",
    "verify passes split the keys in runs of 128, and each split's sum holds the sink: with two splits it counts twice",
    "target.layers.1.attn_out",
    "verify",
    "sink's term in the softmax's sum of verify passes",
    "verify rows with more than 128 keys, in layers without a window",
    "pass = verify and position >= 128 and layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        if sink is None or at.kind != "verify" or pipeline.target.windows[at.layer] is not None:
            return clean(x) if sink is None else clean(x, sink)
        splits = (at.positions // 128 + 1).reshape(-1, 1)
        return clean(x, at.array(at.host(sink) + np.log(splits), x))

    alter(pipeline, SOFTMAX, change)


@fault(
    "last-partial-key-tile-skipped",
    "in a prefill the loop over key tiles of 32 is rounded down: the last tile is skipped where it is not full",
    OUT,
    "prefill",
    "keys of the prompt's last tile of 32",
    "prefill rows in the prompt's last tile of 32, where that is not full",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        count = int(np.sum(at.positions != pipeline.target.trash))

        def hidden(value):
            value[:, :count, count // 32 * 32 : count] = False
            return value

        return clean(q, keys, values, at.changed(seen, hidden) if at.kind == "prefill" else seen, sinks)

    alter(pipeline, ATTEND, change)
