"""Rotary embedding of the drafter reference, from the equations: default, llama3 and YaRN schedules.

Sources: Su et al. 2021 (half-split form); Llama 3 wavelength smoothing (Meta, llama-models);
Peng et al. 2023, YaRN by parts (ramp between beta_fast and beta_slow, concentration 0.1 ln s + 1).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from parity.errors import UsageError


def schedule(rope: dict[str, Any], head_dim: int) -> tuple[torch.Tensor, float]:
    """Return inverse frequencies [D/2] (float64, radians per position) and the cos/sin scale.

    Raises:
        UsageError: the rope type is none of default, llama3, yarn.
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    plain = float(rope["rope_theta"]) ** -exponent
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return plain, 1.0
    if kind == "llama3":
        return _llama3(plain, rope), 1.0
    if kind == "yarn":
        return _yarn(plain, rope, head_dim)
    raise UsageError(f"config.json: rope_type {kind!r} is not one of default, llama3, yarn")


def _llama3(plain: torch.Tensor, rope: dict[str, Any]) -> torch.Tensor:
    """Long wavelengths divided by the factor, short ones kept, a linear blend between."""
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    turns = float(rope["original_max_position_embeddings"]) * plain / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return keep * plain + (1 - keep) * plain / float(rope["factor"])


def _yarn(plain: torch.Tensor, rope: dict[str, Any], head_dim: int) -> tuple[torch.Tensor, float]:
    """By parts: few turns in the original context are interpolated, many are kept."""
    factor, original = float(rope["factor"]), float(rope["original_max_position_embeddings"])

    def dimension(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(float(rope["rope_theta"])))

    low, high = dimension(rope.get("beta_fast", 32.0)), dimension(rope.get("beta_slow", 1.0))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, head_dim - 1.0)
    index = torch.arange(head_dim // 2, dtype=torch.float64)
    interpolate = ((index - low) / max(high - low, 1e-3)).clamp(0.0, 1.0)
    concentration = rope.get("attention_factor") or (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)
    return interpolate * plain / factor + (1 - interpolate) * plain, float(concentration)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate [B, W, N, D] by float32 tables [B, W, 1, D/2]; half-split, one cast back to x's dtype."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
