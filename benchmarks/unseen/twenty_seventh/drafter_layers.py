"""Faults of the drafter's norms, residuals and MLP."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.kernels import drafter_layer as kernel
from parity.device.kernels.linear import linear, row_parallel
from parity.device.kernels.norm import llama_norm
from parity.device.pipeline import Pipeline

fault = Part("drafter layers", 27)


@fault(
    "midlayer-norms-share-one-mean-square",
    "the fused norm of the midlayer takes one mean square over embedding and hidden together",
    "drafter.layers.0.attn_out",
    "prefill",
    "mean square of input_norm and hidden_norm in layer 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, embedded, fused, step, weights, caches, config, tap):
        weight = np.concatenate([weights["input_norm"], weights["hidden_norm"]])
        both = llama_norm(np.concatenate([embedded, fused], axis=-1), weight, config.eps)
        return kernel._rest(fused, both, step, weights, caches, config, tap)

    alter(pipeline, "drafter:midlayer", change)


@fault(
    "post-norm-of-first-layer-everywhere",
    "every layer's MLP takes the post-attention norm's weight of layer 0",
    "drafter.layers.1.ffn_out",
    "prefill",
    "post_norm weight of layers 1 to 3",
)
def _(pipeline: Pipeline) -> None:
    for weights in pipeline.drafter.layers[1:]:
        weights["post_norm"] = pipeline.drafter.layers[0]["post_norm"]


@fault(
    "silu-skips-columns-behind-128",
    "layer 3's activation covers 128 columns: behind them gate and up are multiplied without the sigmoid",
    "drafter.layers.3.ffn_out",
    "prefill",
    "activation of layer 3, columns 128 to 223",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        if at.layer != 3:
            return clean(x, weights)
        gate, up = (linear(x, weights[name]).astype(np.float32) for name in ("gate", "up"))
        tail = np.arange(gate.shape[-1]) >= 128
        active = up * gate * np.where(tail, np.float32(1), 1 / (1 + np.exp(-gate)))
        return row_parallel(active.astype(x.dtype), weights["down"])

    alter(pipeline, "kernels.drafter_layer:_mlp", change)


@fault(
    "last-layer-out-without-attention",
    "what leaves layer 3 is the MLP's output added to the residual from before attention",
    "drafter.layers.3.out",
    "prefill",
    "residual behind the MLP of layer 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, step, weights, caches, config, tap):
        if at.layer != 3:
            return clean(x, step, weights, caches, config, tap)
        normed = llama_norm(x, weights["input_norm"], config.eps)
        mixed = x + tap("attn_out", kernel._self_attention(normed, step, weights, caches, config, tap))
        made = tap("ffn_out", kernel._mlp(llama_norm(mixed, weights["post_norm"], config.eps), weights))
        return tap("out", x + made)

    alter(pipeline, "drafter:plain_layer", change)
