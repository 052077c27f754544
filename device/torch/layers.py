"""The layers of target and drafters in PyTorch, in dataflow order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear as product
from torch.nn.functional import rms_norm, silu

from parity.device.config import Attention, TargetConfig
from parity.device.drafter_config import DrafterConfig, FusedConfig
from parity.device.kernels.tap import Tap, untapped
from parity.device.torch import experts
from parity.device.torch.attention import attend, rotate

Weights = dict[str, Any]
Caches = tuple[Any, ...]


@dataclass(frozen=True)
class Step:
    """One pass over W rows.

    Args:
        slots: int64 [W], the cache row each row writes.
        turns: complex64 [W, D/2], the rotation of each row.
        span: cache rows that can be seen.
        seen: window (None for no window) to bool [W, span].
    """

    slots: Tensor
    turns: Tensor
    span: int
    seen: dict[int | None, Tensor]


def join(layer: Weights) -> None:
    """Put one matrix in the place of the projections of one input: `qkv` of q, k and v, `gate_up` of gate and up."""
    for name, parts in {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}.items():
        for suffix in ("", "_bias"):
            if parts[0] + suffix in layer:
                layer[name + suffix] = torch.cat([layer.pop(part + suffix) for part in parts], dim=-1)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W + b of x [B, W, in], weight [in, out] and bias [out]."""
    return product(x, weight.T, bias)


def gpt_oss_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm whose weight multiplies in float32, one cast afterwards."""
    return rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


def llama_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm that is cast first; the weight multiplies in x's dtype."""
    return rms_norm(x.float(), weight.shape, None, eps).to(x.dtype) * weight


def target_layer(
    x: Tensor, step: Step, weights: Weights, caches: Caches, config: TargetConfig, window: int | None, tap: Tap
) -> Any:
    """One gpt-oss layer over x [B, W, H]: in_of[l] to out_of[l]; writes its keys and values to the caches."""
    normed = tap("attn_in", gpt_oss_norm(x, weights["input_norm"], config.eps))
    mixed = self_attention(normed, step, weights, caches, config.attention, window, tap)
    x = x + tap("attn_out", linear(mixed, weights["o"], weights["o_bias"]))
    normed = gpt_oss_norm(x, weights["post_norm"], config.eps)
    logits = tap("router_logits", linear(normed, weights["router"], weights["router_bias"]))
    chosen = tap("experts", experts.top_k(logits, config.experts_per_token))
    return tap("out", x + tap("ffn_out", experts.mixture(normed, logits, chosen, weights, config)))


def midlayer(
    embedded: Tensor, hidden: Tensor, step: Step, weights: Weights, caches: Caches, config: FusedConfig, tap: Tap
) -> Any:
    """A drafter's layer 0: attends over embedding and fused hidden side by side, both normed."""
    normed = llama_norm(hidden, weights["hidden_norm"], config.eps)
    both = torch.cat([llama_norm(embedded, weights["input_norm"], config.eps), normed], dim=-1)
    return _llama_rest(normed if config.norm_before_residual else hidden, both, step, weights, caches, config, tap)


def plain_layer(x: Tensor, step: Step, weights: Weights, caches: Caches, config: DrafterConfig, tap: Tap) -> Any:
    """A Llama layer over x [B, W, H]."""
    return _llama_rest(x, llama_norm(x, weights["input_norm"], config.eps), step, weights, caches, config, tap)


def _llama_rest(
    residual: Tensor, normed: Tensor, step: Step, weights: Weights, caches: Caches, config: DrafterConfig, tap: Tap
) -> Any:
    mixed = self_attention(normed, step, weights, caches, config.attention, None, untapped)
    x = residual + tap("attn_out", linear(mixed, weights["o"]))
    gate, up = linear(llama_norm(x, weights["post_norm"], config.eps), weights["gate_up"]).chunk(2, dim=-1)
    active = (silu(gate.float()) * up.float()).to(x.dtype)
    return tap("out", x + tap("ffn_out", linear(active, weights["down"])))


def self_attention(
    x: Tensor, step: Step, weights: Weights, caches: Caches, axes: Attention, window: int | None, tap: Tap
) -> Tensor:
    """Attention of x [B, W, in] over the caches [B, P + 1, G, D], which take its keys and values: [B, W, N * D]."""
    heads = linear(x, weights["qkv"], weights.get("qkv_bias")).unflatten(-1, (-1, axes.head_dim))
    q, k, v = heads.split([axes.heads, axes.kv_heads, axes.kv_heads], dim=-2)
    q, k, v = tap("q", rotate(q, step.turns)), tap("k", rotate(k, step.turns)), tap("v", v)
    for held, rows in zip(caches, (k, v), strict=True):
        held[:, step.slots] = rows
    keys, values = (held[:, : step.span] for held in caches)
    return attend(q, keys, values, step.seen[window], weights.get("sinks"))
