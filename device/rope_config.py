"""The RoPE part of a config.json, in either spelling; what is not understood is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass

from parity.device.fields import Fields

_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_KEYS = {
    "default": set(),
    "yarn": {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate", "attention_factor"},
    "llama3": {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
}


@dataclass(frozen=True)
class RopeConfig:
    """One rotary embedding.

    Args:
        kind: `default`, `yarn` or `llama3`.
        theta: base of the frequencies.
        factor: context extension; 1 for `default`.
        original: positions before the extension; 0 for `default`.
        fast: yarn's beta_fast (rotations) or llama3's high_freq_factor.
        slow: yarn's beta_slow (rotations) or llama3's low_freq_factor.
        truncate: whether yarn's ramp bounds are rounded outwards to whole dimensions.
        magnitude: multiplies cos and sin.
    """

    kind: str
    theta: float
    factor: float = 1.0
    original: int = 0
    fast: float = 1.0
    slow: float = 1.0
    truncate: bool = True
    magnitude: float = 1.0


def parse_rope(config: Fields) -> RopeConfig:
    """Read `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling` (older, and on the hub)."""
    part = _part(config)
    kind, old = (part.data.get(name) for name in ("rope_type", "type"))
    if kind is not None and old not in (None, kind):
        raise part.refuse("type", f"is {old!r} and contradicts 'rope_type'")
    kind = (kind or old) if part.data else "default"
    if kind not in _KEYS:
        raise part.refuse("rope_type", f"is {kind!r}, which this device does not know ({', '.join(_KEYS)})")
    unknown = sorted(set(part.data) - _COMMON - _KEYS[kind])
    if unknown:
        raise part.refuse(unknown[0], f"is not known for rope type {kind!r}")
    part.only("partial_rotary_factor", 1.0, default=1.0)
    theta = _theta(config, part)
    return {"default": _default, "yarn": _yarn, "llama3": _llama3}[kind](part, theta)


def _part(config: Fields) -> Fields:
    new, old = config.part("rope_parameters"), config.part("rope_scaling")
    if config.has("rope_parameters") and config.has("rope_scaling"):
        bare = [{key: value for key, value in one.data.items() if key != "rope_theta"} for one in (new, old)]
        if bare[0] != bare[1]:
            raise config.refuse("rope_scaling", "contradicts 'rope_parameters'")
    return new if config.has("rope_parameters") else old


def _theta(config: Fields, part: Fields) -> float:
    inside, outside = part.has("rope_theta"), config.has("rope_theta")
    if inside and outside and part.data["rope_theta"] != config.data["rope_theta"]:
        raise config.refuse("rope_theta", f"contradicts '{part.prefix}rope_theta'")
    return part.number("rope_theta") if inside else config.number("rope_theta")


def _default(_part: Fields, theta: float) -> RopeConfig:
    return RopeConfig("default", theta)


def _yarn(part: Fields, theta: float) -> RopeConfig:
    factor = part.number("factor")
    return RopeConfig(
        "yarn",
        theta,
        factor,
        part.integer("original_max_position_embeddings"),
        fast=part.number("beta_fast", 32.0),
        slow=part.number("beta_slow", 1.0),
        truncate=part.flag("truncate", True),
        magnitude=part.number("attention_factor", 0.1 * math.log(factor) + 1 if factor > 1 else 1.0),
    )


def _llama3(part: Fields, theta: float) -> RopeConfig:
    slow, fast = part.number("low_freq_factor"), part.number("high_freq_factor")
    if slow >= fast:
        raise part.refuse("low_freq_factor", f"is {slow:g}, not below 'high_freq_factor'")
    factor, original = part.number("factor"), part.integer("original_max_position_embeddings")
    return RopeConfig("llama3", theta, factor, original, fast=fast, slow=slow)
