"""Attention in PyTorch: rotation by complex numbers, and one fused call over the cache, sinks included.

The sink is a term of the softmax's denominator that belongs to no key. A key of zeros scores 0 with every query: with
the sink's logit in the additive mask its score is that logit, and its value of zeros adds nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from parity.device.rope_config import RopeConfig
from parity.device.torch.tensors import PLACE


def turns(rope: RopeConfig, head_dim: int, positions: int) -> Tensor:
    """magnitude * exp(i p w) of each position p and frequency w: complex64 [positions, D/2]; angles in float64."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies(rope, head_dim))
    return torch.polar(torch.full_like(angles, rope.magnitude), angles).to(torch.complex64).to(PLACE)


def frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position, float64 [D/2]: YaRN's by parts (arXiv 2309.00071), Llama 3.1's by wavelength."""
    plain = torch.pow(rope.theta, -torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if rope.kind == "default":
        return plain
    kept = _yarn_kept(rope, head_dim) if rope.kind == "yarn" else _llama3_kept(rope, plain)
    return torch.lerp(plain / rope.factor, plain, kept)


def _yarn_kept(rope: RopeConfig, head_dim: int) -> Tensor:
    """How much of each frequency stays: 1 before the ramp, 0 behind it. float64 [D/2]."""

    def place(turned: float) -> float:  # of the frequency with so many turns over the original context
        return head_dim * math.log(rope.original / (turned * math.tau)) / (2 * math.log(rope.theta))

    low, high = place(rope.fast), place(rope.slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    places = torch.arange(head_dim // 2, dtype=torch.float64)
    return 1 - ((places - low) / max(high - low, 0.001)).clamp(0, 1)


def _llama3_kept(rope: RopeConfig, plain: Tensor) -> Tensor:
    """How much of each frequency stays, by its turns over the original context: float64 [D/2]."""
    turned = rope.original * plain / math.tau
    return ((turned - rope.slow) / (rope.fast - rope.slow)).clamp(0, 1)


def rotate(x: Tensor, turned: Tensor) -> Tensor:
    """x [B, W, N, D], whose halves are real and imaginary part, times turned [W, D/2]; rounded once to x's dtype."""
    halves = x.float().unflatten(-1, (2, -1)).transpose(-1, -2).contiguous()
    product = torch.view_as_real(torch.view_as_complex(halves) * turned[:, None])
    return product.transpose(-1, -2).flatten(-2).to(x.dtype)


def seen(positions: Tensor, span: int, window: int | None) -> Tensor:
    """Which of the first `span` cache rows each of positions [W] sees, 0 <= q - k < window: bool [W, span]."""
    back = positions[:, None] - torch.arange(span, device=positions.device)
    return (back >= 0) & (back < (span if window is None else window))


def attend(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Fused attention of grouped heads.

    Args:
        q: [B, W, N, D].
        keys, values: [B, P, G, D], rows of the cache.
        visible: bool [W, P].
        sinks: [N], one logit a head that only takes weight away, or None.

    Returns:
        [B, W, N * D].
    """
    mask = visible
    if sinks is not None:
        keys, values = (pad(one, (0, 0, 0, 0, 0, 1)) for one in (keys, values))
        mask = with_sinks(visible, sinks)
    q, keys, values = (one.transpose(1, 2) for one in (q, keys, values))
    mixed = scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
    return mixed.transpose(1, 2).flatten(-2)


def with_sinks(visible: Tensor, sinks: Tensor) -> Tensor:
    """The additive mask of each head [N, W, P + 1]: 0 or minus infinity, and the head's sink in the last column."""
    width, span = visible.shape
    mask = sinks.new_zeros(len(sinks), width, span + 1)
    mask[..., :span].masked_fill_(~visible, -math.inf)
    mask[..., span] = sinks[:, None]
    return mask
