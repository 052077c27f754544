"""The rotation itself, in float64 and as float32 does it, and how far the second may be from the first.

A pair of head dimensions is one complex number z; RoPE makes it concentration * exp(i p f) * z. Errors here are
|got - true| / (concentration * |z|): in radians for a wrong angle, relative for a wrong scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.gates.positions.schedule import RopeSchedule

U = 2.0**-24
"""Unit roundoff of float32."""

ROTATION = (5**0.5 + 4) * U
"""Error that is there at every position, position 0 included. sqrt(5) U: a complex product in float32 (Brent,
Percival and Zimmermann 2007). Four more roundings of at most U: the library's cos and sin (1 ULP = 2 U), the
concentration, its product with them."""

FREQUENCY = 7
"""Roundings of U that a float32 angle can gather, relative: a power within 1 ULP (2 U), its reciprocal, the division
by the factor, one product and the sum of the blend, the product with the position."""

BLEND = 10
"""Roundings of U that the blend's share can gather, absolute. llama3: 6 up to the turns in the original context, which
are at most high / (high - low) = 4/3 of the share's range, and 2 in the difference and the quotient. YaRN stays below:
ends of 8 and 17 pairs rounded, 9 pairs apart. The share moves the frequency by the distance of the two it blends."""


def turn(frequencies: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """exp(i p f): complex128 [S, D/2], angles in float64."""
    return np.exp(1j * (positions[:, None].astype(np.float64) * frequencies))


def pairs(x: np.ndarray) -> np.ndarray:
    """Half-split: dimension i pairs with i + D/2. [..., D] to complex128 [..., D/2]."""
    first, second = np.split(x.astype(np.float64), 2, axis=-1)
    return first + 1j * second


def dimensions(z: np.ndarray) -> np.ndarray:
    """The inverse of `pairs`: float64 [..., D]."""
    return np.concatenate([z.real, z.imag], axis=-1)


def interleaved_order(head_dim: int) -> np.ndarray:
    """Where each dimension of an interleaved head sits in the half-split one: `x[..., order]` is interleaved."""
    return np.arange(head_dim).reshape(2, -1).T.ravel()


def interleaved_pairs(x: np.ndarray) -> np.ndarray:
    """Interleaved: dimension 2i pairs with 2i + 1. [..., D] to complex128 [..., D/2]."""
    return x[..., 0::2].astype(np.float64) + 1j * x[..., 1::2].astype(np.float64)


def interleaved_dimensions(z: np.ndarray) -> np.ndarray:
    """The inverse of `interleaved_pairs`: float64 [..., D]."""
    return np.stack([z.real, z.imag], axis=-1).reshape(*z.shape[:-1], -1)


def rotate(schedule: RopeSchedule, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The truth: x [S, N, D] at positions [S] as complex128 pairs [S, N, D/2]."""
    return schedule.concentration * turn(schedule.frequencies(), positions)[:, None] * pairs(x)


def rotate_float32(schedule: RopeSchedule, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The same with every step in float32, angles too, as transformers and vLLM compute it: float32 [S, N, D]."""
    angle = positions[:, None, None].astype(np.float32) * schedule.frequencies(np.float32)
    concentration = np.float32(schedule.concentration)
    cos, sin = np.cos(angle) * concentration, np.sin(angle) * concentration
    first, second = np.split(x.astype(np.float32), 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def bound(schedule: RopeSchedule, positions: np.ndarray) -> np.ndarray:
    """The largest error [S, D/2] that float32 arithmetic explains; it grows with the position, as float32 angles do."""
    plain, slow, share = schedule.blend()
    blended = (share > 0) & (share < 1)
    slope = FREQUENCY * schedule.frequencies() + BLEND * blended * (plain - slow)
    return ROTATION + U * positions[:, None] * slope


def error(schedule: RopeSchedule, got: np.ndarray, x: np.ndarray, true: np.ndarray) -> np.ndarray:
    """|got - true| relative to the rotated pair: [S, N, D/2]. `true` and what `got` [S, N, D] holds are pairs."""
    return np.abs(pairs(got) - true) / (schedule.concentration * np.abs(pairs(x)))


def unit_heads(rng: Any, rows: int, heads: int, head_dim: int) -> np.ndarray:
    """Heads whose pairs all have length 1 and a random direction: float32 [S, N, D]."""
    return dimensions(np.exp(2j * np.pi * rng.random((rows, heads, head_dim // 2)))).astype(np.float32)
