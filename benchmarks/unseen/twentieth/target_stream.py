"""Faults of the target's residual stream."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.kernels import target_layer as layers
from parity.device.pipeline import Pipeline

fault = Part("residual stream", 20)
TILE = 32


def attended(x, step, weights, caches, config, window, tap):
    """What attention reads of x, and what it makes of that."""
    normed = tap("attn_in", layers.gpt_oss_norm(x, weights["input_norm"], config.eps))
    return normed, tap("attn_out", layers._self_attention(normed, step, weights, caches, config, window, tap))


def experts(x, weights, config, tap):
    """What the experts make of x."""
    return tap("ffn_out", layers.moe(layers.gpt_oss_norm(x, weights["post_norm"], config.eps), weights, config, tap))


@fault(
    "residual-from-normed",
    "in layer 2 attention's output is added to what the norm made of the stream, not to the stream",
    "target.layers.2.router_logits",
    "prefill",
    "residual around attention in layer 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        if at.layer != 2:
            return clean(*given)
        _, _, weights, _, config, _, tap = given
        normed, mixed = attended(*given)
        x = normed + mixed
        return tap("out", x + experts(x, weights, config, tap))

    alter(pipeline, "target:target_layer", change)


@fault(
    "overlapping-row-added-twice",
    "tiles of prefill rows overlap by one: the experts' output of the last row of each 32 is added by both",
    "target.layers.0.out",
    "prefill",
    "residual around the experts: their output twice",
    "prefill rows that are the last of 32",
    "pass = prefill and row % 32 = 31",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        if at.kind != "prefill":
            return clean(*given)
        x, _, weights, _, config, _, tap = given
        x = x + attended(*given)[1]
        made = experts(x, weights, config, tap)
        twice = (np.arange(x.shape[1]) % TILE == TILE - 1)[None, :, None]
        return tap("out", at.array(at.host(x) + at.host(made) * np.where(twice, 2, 1).astype(np.float32), x))

    alter(pipeline, "target:target_layer", change)
