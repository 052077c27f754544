"""Faults of the drafter's norms and its rotation."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.kernels import drafter_layer
from parity.device.kernels.norm import llama_norm
from parity.device.pipeline import Pipeline

fault = Part("drafter norms and rope", 19)


@fault(
    "one-mean-over-both-halves",
    "one fused norm over embedding and hidden side by side: both are divided by their common root mean square",
    "drafter.layers.0.attn_out",
    "prefill",
    "input_norm and hidden_norm of the drafter's first layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, embedded, fused, step, weights, caches, config, tap):
        weight = np.concatenate([weights["input_norm"], weights["hidden_norm"]], axis=-1)
        both = llama_norm(np.concatenate([embedded, fused], axis=-1), weight, config.eps)
        return drafter_layer._rest(fused, both, step, weights, caches, config, tap)

    alter(pipeline, "drafter:midlayer", change)


@fault(
    "final-norm-of-target",
    "the drafter's final norm is bound to the target's, as a shared module is",
    "drafter.pre_head_hidden",
    "draft",
    "weight of the drafter's final norm",
)
def _(pipeline: Pipeline) -> None:
    pipeline.drafter.outer["norm"] = pipeline.target.outer["norm"]


@fault(
    "llama3-ramp-reversed",
    "between its two wavelengths llama3 scaling blends the other way round",
    "drafter.layers.0.attn_out",
    "prefill",
    "drafter rope: frequencies of the ramp",
)
def _(pipeline: Pipeline) -> None:
    model = pipeline.drafter
    rope, dim = model.rope, model.config.attention.head_dim
    plain = rope.theta ** (-np.arange(0, dim, 2) / dim)
    smooth = np.clip((rope.original * plain / (2 * np.pi) - rope.slow) / (rope.fast - rope.slow), 0, 1)
    smooth = np.where((smooth > 0) & (smooth < 1), 1 - smooth, smooth)
    angles = np.arange(model.positions)[:, None] * (plain * smooth + plain / rope.factor * (1 - smooth))
    cos, sin = ((wave(angles) * rope.magnitude).astype(np.float32) for wave in (np.cos, np.sin))
    model.tables = model.engine.array(cos), model.engine.array(sin)


@fault(
    "layer-1-out-without-attention",
    "the fused add and norm does not write the sum back: the residual that leaves layer 1 lacks its attention",
    "drafter.layers.1.out",
    "prefill",
    "residual stream of drafter layer 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, residual, normed, step, weights, caches, config, tap):
        if at.layer != 1:
            return clean(residual, normed, step, weights, caches, config, tap)
        given = normed, step, weights, caches, config, tap
        summed = residual + tap("attn_out", drafter_layer._self_attention(*given))
        x = llama_norm(summed, weights["post_norm"], config.eps)
        return tap("out", residual + tap("ffn_out", drafter_layer._mlp(x, weights)))

    alter(pipeline, "kernels.drafter_layer:_rest", change)
