"""gpt-oss's mixture of experts: top-k router and clamped SwiGLU, in two formulations of the same maths.

*masked*: every expert on every row, what a row did not choose masked out of the sum. *gathered*: each row takes the
weights of its k experts along, which reads less where rows are few and more where they are many.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.config import TargetConfig
from parity.device.kernels.attention import softmax
from parity.device.kernels.collectives import all_reduce
from parity.device.kernels.linear import linear, wide_linear
from parity.device.kernels.program import program
from parity.device.kernels.tap import Tap

EXPERTS = ("gate", "gate_bias", "up", "up_bias", "down", "down_bias")
"""Weights with an E axis in front, but for the router's."""


def moe(x: Any, weights: dict[str, Any], config: TargetConfig, tap: Tap) -> Any:
    """Router and experts over x [B, S, H]; the experts' sum in float32, one cast."""
    logits = tap("router_logits", linear(x, weights["router"], weights["router_bias"]))
    chosen = tap("experts", top_k(logits, config.experts_per_token))
    return mixture(x, logits, chosen, weights, config)


@program
def mixture(x: Any, logits: Any, chosen: Any, weights: dict[str, Any], config: TargetConfig) -> Any:
    """The chosen experts [B, S, k] of x [B, S, H], mixed by the softmax of their logits [B, S, E]."""
    shares = softmax(np.take_along_axis(logits, chosen, axis=-1).astype(np.float32))
    mixed = (gathered if config.moe == "gathered" else masked)(x, chosen, shares, weights, config)
    return all_reduce(mixed).astype(x.dtype)


def masked(x: Any, chosen: Any, shares: Any, weights: dict[str, Any], config: TargetConfig) -> Any:
    """The experts' sum for x [B, S, H] out of every expert's output: float32 [B, S, H]; arguments as for `mix`."""
    batch, rows, hidden = x.shape
    outputs = experts(x.reshape(1, batch * rows, hidden), weights, config)
    return mix(outputs.reshape(config.experts, batch, rows, hidden), chosen, shares)


def gathered(x: Any, chosen: Any, shares: Any, weights: dict[str, Any], config: TargetConfig) -> Any:
    """The same sum with k matrices a row: B * S * k copies of an expert's weights."""
    (batch, rows, hidden), k = x.shape, chosen.shape[-1]
    each = np.arange(batch * rows * k, dtype=np.int32) // k
    mine = {name: np.take(weights[name], chosen.reshape(-1), axis=0) for name in EXPERTS}
    outputs = experts(np.take(x.reshape(-1, 1, hidden), each, axis=0), mine, config)
    return np.sum(outputs.reshape(batch, rows, k, hidden) * shares[..., None], axis=2)


@program
def top_k(logits: Any, k: int) -> Any:
    """The k largest of logits [B, S, E] in descending order, the lower id first on a tie: int32 [B, S, k]."""
    ids = np.arange(logits.shape[-1], dtype=np.int32)
    left, chosen = logits.astype(np.float32), []
    for _ in range(k):
        best = np.argmax(left, axis=-1)[..., None]
        chosen.append(best)
        left = np.where(ids == best, -np.inf, left)
    return np.concatenate(chosen, axis=-1)


def experts(x: Any, weights: dict[str, Any], config: TargetConfig) -> Any:
    """Every expert on every row: x [1, T, H], or [E, T, H] with rows of its own for each, to float32 [E, T, H]."""
    gate = linear(x, weights["gate"], weights["gate_bias"][:, None])
    up = linear(x, weights["up"], weights["up_bias"][:, None])
    active = clamped_swiglu(gate, up, config.limit, config.alpha)
    return wide_linear(active, weights["down"], weights["down_bias"][:, None])


def clamped_swiglu(gate: Any, up: Any, limit: float, alpha: float) -> Any:
    """(up + 1) * gate * sigmoid(alpha * gate) with gate <= limit and |up| <= limit; float32, one cast."""
    wide = np.minimum(gate.astype(np.float32), limit)
    lifted = np.maximum(np.minimum(up.astype(np.float32), limit), -limit) + 1.0
    return (lifted * wide / (1.0 + np.exp(wide * -alpha))).astype(gate.dtype)


def mix(outputs: Any, chosen: Any, shares: Any) -> Any:
    """Sum over the chosen experts in float32.

    Args:
        outputs: float32 [E, B, S, H].
        chosen: int32 [B, S, k].
        shares: float32 [B, S, k], the softmax over the k.

    Returns:
        float32 [B, S, H].
    """
    ids = np.arange(outputs.shape[0], dtype=np.int32)[:, None, None, None]
    mine = chosen == ids
    share = np.sum(np.where(mine, shares, 0.0), axis=-1)
    # Masked, not only weighted: what an expert makes of a row that is not its own may be anything.
    return np.sum(np.where(np.any(mine, axis=-1)[..., None], outputs * share[..., None], 0.0), axis=0)
