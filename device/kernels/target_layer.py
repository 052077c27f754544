"""The gpt-oss target, in dataflow order."""

from __future__ import annotations

from typing import Any

from parity.device.config import TargetConfig
from parity.device.kernels import cache, quantised
from parity.device.kernels.attention import attend
from parity.device.kernels.linear import linear, row_parallel
from parity.device.kernels.moe import moe
from parity.device.kernels.norm import gpt_oss_norm
from parity.device.kernels.program import program
from parity.device.kernels.rope import rotate
from parity.device.kernels.step import Step
from parity.device.kernels.tap import Tap

Caches = tuple[Any, Any]


@program
def target_layer(
    x: Any, step: Step, weights: dict[str, Any], caches: Caches, config: TargetConfig, window: int | None, tap: Tap
) -> Any:
    """One layer over x [B, S, H]: in_of[l] to out_of[l]; writes its keys and values to the caches."""
    normed = tap("attn_in", gpt_oss_norm(x, weights["input_norm"], config.eps))
    x = x + tap("attn_out", _self_attention(normed, step, weights, caches, config, window, tap))
    normed = gpt_oss_norm(x, weights["post_norm"], config.eps)
    x = x + tap("ffn_out", moe(normed, weights, config, tap))
    return tap("out", x)


def _self_attention(
    x: Any, step: Step, weights: dict[str, Any], caches: Caches, config: TargetConfig, window: int | None, tap: Tap
) -> Any:
    # The weights say how many heads there are: a rank has its share of them.
    heads = (*x.shape[:2], -1, config.attention.head_dim)
    q, k, v = (linear(x, weights[name], weights[f"{name}_bias"]).reshape(*heads) for name in "qkv")
    q, k = tap("q", rotate(q, step.cos, step.sin)), tap("k", rotate(k, step.cos, step.sin))
    v = tap("v", v)
    for held, rows in zip(caches, quantised.written((k, v), weights, config.kv_format), strict=True):
        cache.write(held, rows, step.slots)
    keys, values = quantised.read([held[:, : step.span] for held in caches], weights, config.kv_format, x)
    mixed = attend(q, keys, values, step.seen[window], weights["sinks"])
    return row_parallel(mixed, weights["o"], weights["o_bias"])
