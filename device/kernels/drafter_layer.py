"""The drafters' layers: fusion, a midlayer over twice the width, plain Llama layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.drafter_config import DrafterConfig, FusedConfig
from parity.device.kernels import cache, quantised
from parity.device.kernels.attention import attend
from parity.device.kernels.linear import linear, row_parallel
from parity.device.kernels.norm import llama_norm
from parity.device.kernels.pages import attend_to_pages, summarise
from parity.device.kernels.program import program
from parity.device.kernels.rope import rotate
from parity.device.kernels.step import Step
from parity.device.kernels.tap import Tap, untapped

Caches = tuple[Any, ...]
"""Keys and values, and with partial KV the two summaries of their pages."""


@program
def fuse(taps: Any, mask_hidden: Any, committed: Any, fc: Any) -> Any:
    """Fused hidden of every row; the masked rows' learnt hidden goes through fc as the taps do.

    Args:
        taps: [B, W, T * H of the target]; read in committed rows only.
        mask_hidden: [1, 1, T * H of the target].
        committed: int32 [B], C.
        fc: [T * H of the target, H].
    """
    row = np.arange(taps.shape[1], dtype=np.int32)
    return linear(np.where((row < committed[:, None])[:, :, None], taps, mask_hidden), fc)


@program
def project(taps: Any, fc: Any) -> Any:
    """Fused hidden of rows that all have taps [B, W, T * H of the target]."""
    return linear(taps, fc)


@program
def normed_taps(taps: Any, weight: Any, eps: float) -> Any:
    """Taps [B, W, T * H of the target] over their root mean square: of all of them, or each tap's own.

    Args:
        weight: [T * H of the target], or [T, H of the target].
    """
    rows = taps.reshape(*taps.shape[:2], *weight.shape)
    return llama_norm(rows, weight, eps).reshape(*taps.shape)


@program
def midlayer(
    embedded: Any, fused: Any, step: Step, weights: dict[str, Any], caches: Caches, config: FusedConfig, tap: Tap
) -> Any:
    """Layer 0: attends over embedding and fused hidden side by side, both normed."""
    normed = llama_norm(fused, weights["hidden_norm"], config.eps)
    both = np.concatenate([llama_norm(embedded, weights["input_norm"], config.eps), normed], axis=-1)
    residual = normed if config.norm_before_residual else fused
    return _rest(residual, both, step, weights, caches, config, tap)


@program
def plain_layer(x: Any, step: Step, weights: dict[str, Any], caches: Caches, config: DrafterConfig, tap: Tap) -> Any:
    """A Llama layer."""
    return _rest(x, llama_norm(x, weights["input_norm"], config.eps), step, weights, caches, config, tap)


@program
def remember(context: Any, step: Step, weights: dict[str, Any], caches: Caches, config: DrafterConfig) -> Any:
    """Write a layer's keys and values of context rows [B, W, H], which no attention of theirs precedes."""
    _write(context, step, weights, caches, config, untapped)
    return context


def _rest(
    residual: Any, normed: Any, step: Step, weights: dict[str, Any], caches: Caches, config: DrafterConfig, tap: Tap
) -> Any:
    x = residual + tap("attn_out", _self_attention(normed, step, weights, caches, config, tap))
    x = x + tap("ffn_out", _mlp(llama_norm(x, weights["post_norm"], config.eps), weights))
    return tap("out", x)


def _self_attention(
    x: Any, step: Step, weights: dict[str, Any], caches: Caches, config: DrafterConfig, tap: Tap
) -> Any:
    q = rotate(_heads(x, "q", weights, config), step.cos, step.sin)
    _write(x, step, weights, caches, config, tap)
    if step.pages is None or config.partial is None:
        keys, values = quantised.read([held[:, : step.span] for held in caches], weights, config.kv_format, x)
        return row_parallel(attend(q, keys, values, step.seen[None]), weights["o"])
    keys, _, low, high = caches
    summarise(keys, low, high, step.pages.touched, config.partial.page)
    mixed = attend_to_pages(q, caches, step.pages, config.partial, config.attention.heads, tap)
    return row_parallel(mixed, weights["o"])


def _write(x: Any, step: Step, weights: dict[str, Any], caches: Caches, config: DrafterConfig, tap: Tap) -> None:
    """The keys, turned, and values of rows into their slots; shown before, where caches keep another format."""
    k, v = rotate(_heads(x, "k", weights, config), step.cos, step.sin), _heads(x, "v", weights, config)
    if config.kv_format:
        k, v = tap("k", k), tap("v", v)
    for held, rows in zip(caches[:2], quantised.written((k, v), weights, config.kv_format), strict=True):
        cache.write(held, rows, step.slots)


def _heads(x: Any, name: str, weights: dict[str, Any], config: DrafterConfig) -> Any:
    """Queries, keys or values [B, W, heads, D]; normed by head where the layer has a norm for them."""
    rows = linear(x, weights[name]).reshape(*x.shape[:2], -1, config.attention.head_dim)
    return llama_norm(rows, weights[f"{name}_norm"], config.eps) if f"{name}_norm" in weights else rows


@program
def _mlp(x: Any, weights: dict[str, Any]) -> Any:
    """down(silu(gate) * up); the activation in float32, one cast."""
    gate, up = (linear(x, weights[name]).astype(np.float32) for name in ("gate", "up"))
    active = up * gate / (1.0 + np.exp(-gate))
    return row_parallel(active.astype(x.dtype), weights["down"])
