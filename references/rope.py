"""Rotary embedding of the drafter reference, from the equations: default, llama3 and YaRN schedules.

Sources: Su et al. 2021 (half-split form); Llama 3 wavelength smoothing (Meta, llama-models);
Peng et al. 2023, YaRN by parts (ramp between beta_fast and beta_slow, concentration 0.1 ln s + 1).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from parity.errors import UsageError

_NEEDED: dict[str, set[str]] = {
    "default": set(),
    "llama3": {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
    "yarn": {"factor", "original_max_position_embeddings"},
}
_OPTIONAL = {"yarn": {"beta_fast", "beta_slow", "truncate", "attention_factor"}}


def read_rope(raw: dict[str, Any]) -> dict[str, Any]:
    """The RoPE of a config.json under one set of names, `rope_type` and `rope_theta` among them.

    transformers 5 keeps all under `rope_parameters`; the hub's checkpoints `rope_theta` beside `rope_scaling`, whose
    type was once called `type`. transformers itself fills what is missing without a word: nothing is filled here.

    Raises:
        UsageError: the type is unknown or missing, a number is missing or unknown, or two spellings contradict.
    """
    found = [_spelt(raw, key) for key in ("rope_parameters", "rope_scaling") if raw.get(key) is not None]
    if len(found) == 2 and found[0] != found[1]:
        raise UsageError("config.json: rope_parameters and rope_scaling contradict each other")
    rope: dict[str, Any] = found[0] if found else {"rope_type": "default", "rope_theta": raw.get("rope_theta")}
    kind = rope["rope_type"]
    if kind not in list(_NEEDED):
        raise UsageError(f"config.json: rope_type {kind!r} is not one of {', '.join(_NEEDED)}")
    wanted = _NEEDED[kind] | {"rope_type", "rope_theta"}
    for name in wanted - rope.keys() | rope.keys() - wanted - _OPTIONAL.get(kind, set()):
        what = "is missing" if name in wanted else "is unknown"
        raise UsageError(f"config.json: {name} {what} for rope_type {kind!r}")
    for name, number in rope.items():
        if name == "truncate" and not isinstance(number, bool):
            raise UsageError(f"config.json: truncate {number!r} is neither true nor false")
        if name not in ("rope_type", "truncate") and not _positive(number):
            raise UsageError(f"config.json: {name} {number!r} is no positive number")
    if kind == "llama3" and rope["low_freq_factor"] >= rope["high_freq_factor"]:
        raise UsageError("config.json: low_freq_factor is not below high_freq_factor")
    return rope


def _positive(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < math.inf


def _spelt(raw: dict[str, Any], key: str) -> dict[str, Any]:
    if not isinstance(raw[key], dict):
        raise UsageError(f"config.json: {key} {raw[key]!r} is no object")
    rope = {name: value for name, value in raw[key].items() if value is not None}
    old = rope.pop("type", None)
    if old not in (None, rope.setdefault("rope_type", old)):
        raise UsageError(
            f"config.json: type {old!r} and rope_type {rope['rope_type']!r} in {key} contradict each other"
        )
    theta = raw.get("rope_theta")
    if theta is not None and rope.setdefault("rope_theta", theta) != theta:
        raise UsageError(f"config.json: rope_theta {theta} and {rope['rope_theta']} in {key} contradict each other")
    return rope


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


def tables(positions: torch.Tensor, frequencies: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [B, W, 1, D/2] in float32 of positions [B, W]; angles in float64, so long positions stay exact."""
    angle = positions[:, :, None, None].double() * frequencies
    return (angle.cos() * scale).float(), (angle.sin() * scale).float()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate [B, W, N, D] by float32 tables [B, W, 1, D/2]; half-split, one cast back to x's dtype."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
