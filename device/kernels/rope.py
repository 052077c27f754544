"""Rotary position embedding: frequencies and tables on the host, the rotation as a kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from parity.device.kernels.program import program
from parity.device.rope_config import RopeConfig


def frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Radians per position, float64 [D/2], after the context extension."""
    plain = rope.theta ** (-np.arange(0, head_dim, 2) / head_dim)
    return {"default": _default, "yarn": _yarn, "llama3": _llama3}[rope.kind](rope, plain)


def tables(rope: RopeConfig, head_dim: int, positions: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin, float32 [positions, D/2], both times the magnitude."""
    angles = np.arange(positions)[:, None] * frequencies(rope, head_dim)
    return tuple((wave(angles) * rope.magnitude).astype(np.float32) for wave in (np.cos, np.sin))


@program
def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Half-split rotation in float32, cast to x's dtype.

    Args:
        x: [B, S, N, D].
        cos, sin: float32 [B, S, D/2], the rows of each position.
    """
    half, wide = x.shape[-1] // 2, x.astype(np.float32)
    first, second = wide[..., :half], wide[..., half:]
    cos, sin = cos[:, :, None, :], sin[:, :, None, :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def _default(_rope: RopeConfig, plain: np.ndarray) -> np.ndarray:
    return plain


def yarn_bounds(rope: RopeConfig, half: int) -> tuple[float, float]:
    """Where the ramp begins and ends, in frequency numbers (arXiv 2309.00071, section 3.2)."""

    def number(rotations: float) -> float:
        return half * math.log(rope.original / (rotations * 2 * math.pi)) / math.log(rope.theta)

    low, high = number(rope.fast), number(rope.slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, 2 * half - 1)


def _yarn(rope: RopeConfig, plain: np.ndarray) -> np.ndarray:
    """By parts: high frequencies stay, low ones are divided by the factor, a linear ramp between."""
    low, high = yarn_bounds(rope, len(plain))
    ramp = np.clip((np.arange(len(plain)) - low) / (high - low or 0.001), 0, 1)
    blend: np.ndarray = plain * (1 - ramp) + plain / rope.factor * ramp
    return blend


def _llama3(rope: RopeConfig, plain: np.ndarray) -> np.ndarray:
    """By wavelength (llama-models `models/llama3/model.py`, apply_scaling)."""
    rotations = rope.original * plain / (2 * math.pi)
    smooth = np.clip((rotations - rope.slow) / (rope.fast - rope.slow), 0, 1)
    return plain * smooth + plain / rope.factor * (1 - smooth)
