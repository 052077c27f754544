"""Rotary position embedding in float64: the schedule that a config.json states, and the rotation, from the equations.

Sources: Su et al. 2021 (arXiv 2104.09864); Peng et al. 2023, YaRN (arXiv 2309.00071), sections 3.2 and 3.4; the
wavelength scaling of Llama 3.1. Nothing here is shared with a device or a reference: a misreading of theirs shows as
a difference.

A pair of head dimensions is one complex number z; RoPE makes it concentration * exp(i p f) * z. Errors are
|got - true| / (concentration * |z|): in radians for a wrong angle, relative for a wrong scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parity.drafter_config import drafter_config_of
from parity.errors import UsageError

NEEDS = {
    "default": (),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
MAY = {"yarn": ("beta_fast", "beta_slow", "truncate", "attention_factor")}
FLAGS = ("truncate",)
LLAMA_THETA = 10000.0
"""The first EAGLE-3 drafters leave RoPE out of their configs, as Llama's first configs do."""
DEFAULTS = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}


@dataclass(frozen=True)
class RopeSchedule:
    """How far each pair of head dimensions turns at a position.

    Attributes:
        kind: default, llama3 or yarn.
        theta: base of the frequencies.
        head_dim: D.
        parameters: the numbers of the context extension, by their names in config.json.
    """

    kind: str
    theta: float
    head_dim: int
    parameters: dict[str, float]

    def __getitem__(self, name: str) -> float:
        return self.parameters[name]

    @property
    def concentration(self) -> float:
        """What cos and sin are multiplied by: YaRN's 0.1 ln(factor) + 1, or what the config says; 1 otherwise."""
        if self.kind != "yarn":
            return 1.0
        factor: float = self.parameters.get("attention_factor") or 0.1 * np.log(max(self["factor"], 1.0)) + 1.0
        return factor

    def blend(self, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Unscaled frequencies [D/2] (radians per position), the slowed ones, and the share [0, 1] of the slowed."""
        pair = np.arange(self.head_dim // 2, dtype=dtype)
        plain = 1 / dtype(self.theta) ** (2 * pair / self.head_dim)
        if self.kind == "default":
            return plain, plain, np.zeros_like(plain)
        share = self._yarn_share(pair) if self.kind == "yarn" else self._llama3_share(plain)
        return plain, plain / dtype(self["factor"]), np.clip(share, 0, 1)

    def frequencies(self, dtype: Any = np.float64) -> np.ndarray:
        """Radians per position [D/2], every step computed in `dtype`."""
        plain, slow, share = self.blend(dtype)
        frequencies: np.ndarray = slow * share + plain * (1 - share)
        return frequencies

    def unscaled_until(self, context: float) -> float:
        """From which position on some pair turns further than it would within `context` positions without the scaling.

        Pairs that go round within the context have no such position: they have every angle there.
        """
        plain, _, _ = self.blend()
        slow = context * plain < 2 * np.pi
        return context * float(np.min((plain / self.frequencies())[slow], initial=np.inf))

    def _yarn_share(self, pair: np.ndarray) -> np.ndarray:
        """0 for pairs with more than beta_fast turns in the original context, 1 below beta_slow, linear between."""
        turns = np.array([self["beta_fast"], self["beta_slow"]])
        wavelength = self["original_max_position_embeddings"] / (2 * np.pi * turns)
        low, high = self.head_dim / 2 * np.log(wavelength) / np.log(self.theta)
        if self["truncate"]:
            low, high = np.floor(low), np.ceil(high)
        # The ends are held inside the head dimension, as transformers holds them; no two of them may meet.
        low, high = max(low, 0.0), min(high, self.head_dim - 1.0)
        share: np.ndarray = (pair - pair.dtype.type(low)) / pair.dtype.type(high - low if high != low else 1e-3)
        return share

    def _llama3_share(self, plain: np.ndarray) -> np.ndarray:
        """1 for wavelengths above original / low_freq_factor, 0 below original / high_freq_factor."""
        wavelength = 2 * np.pi / plain
        smooth = self["original_max_position_embeddings"] / wavelength - self["low_freq_factor"]
        return 1 - smooth / (self["high_freq_factor"] - self["low_freq_factor"])

    def __str__(self) -> str:
        extension = ""
        if self.kind != "default":
            extension = f", x{self['factor']:g} over {self['original_max_position_embeddings']:g}"
        extension += ", truncated" if self.kind == "yarn" and self["truncate"] else ""
        extension += f", concentration {self.concentration:.4f}" if self.concentration != 1 else ""
        return f"{self.kind} (theta {self.theta:g}{extension})"


def read_schedule(folder: Path) -> tuple[RopeSchedule, int]:
    """The schedule of a config.json and its max_position_embeddings.

    Both spellings: `rope_parameters` (transformers 5), `rope_theta` with `rope_scaling` (older, and on the hub).

    Raises:
        UsageError: a type that is unknown, a number that is missing, unknown or no positive number, or spellings
            that contradict each other.
    """
    path, own = folder / "config.json", drafter_config_of(folder)
    rope = _rope(own, path)
    kind = rope.pop("rope_type")
    if kind not in list(NEEDS):
        raise UsageError(f"{path}: rope type {kind!r} is none of {', '.join(NEEDS)}")
    if surplus := set(rope) - {"rope_theta", *NEEDS[kind], *MAY.get(kind, ())}:
        raise UsageError(f"{path}: {min(surplus)!r} is no parameter of rope type {kind!r}")
    theta = _number(rope, "rope_theta", path)
    parameters = {name: _number(rope, name, path) for name in NEEDS[kind]}
    for name in MAY.get(kind, ()):
        if rope.get(name, DEFAULTS.get(name)) is not None:
            parameters[name] = _number(DEFAULTS | rope, name, path)
    if kind == "llama3" and parameters["low_freq_factor"] >= parameters["high_freq_factor"]:
        raise UsageError(f"{path}: 'low_freq_factor' must be below 'high_freq_factor'")
    hidden = (_number(own, name, path) for name in ("hidden_size", "num_attention_heads"))
    head_dim = own.get("head_dim") or int(next(hidden) // next(hidden))
    return RopeSchedule(kind, theta, head_dim, parameters), int(_number(own, "max_position_embeddings", path))


def _rope(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """All RoPE keys in one object with `rope_type` and, where it is stated, `rope_theta`; no null, no old names."""
    stated = []
    for key in ("rope_parameters", "rope_scaling"):
        if config.get(key) is not None:
            if not isinstance(config[key], dict):
                raise UsageError(f"{path}: {key!r} is no object")
            rope = {name: value for name, value in config[key].items() if value is not None}
            old = rope.pop("type", None)
            rope.setdefault("rope_type", old)
            outer = config.get("rope_theta")
            other_theta = outer is not None and rope.setdefault("rope_theta", outer) != outer
            if other_theta or old not in (None, rope["rope_type"]):
                raise UsageError(f"{path}: {key!r} contradicts itself or 'rope_theta'")
            stated.append(rope)
    if len(stated) == 2 and stated[0] != stated[1]:
        raise UsageError(f"{path}: 'rope_parameters' and 'rope_scaling' contradict each other")
    return stated[0] if stated else {"rope_type": "default", "rope_theta": theta_beside(config)}


def theta_beside(config: dict[str, Any]) -> float | None:
    """`rope_theta` as it stands outside the schedule; Llama's own where a Llama config has no word of RoPE."""
    said = [config.get(key) for key in ("rope_theta", "rope_scaling", "rope_parameters")]
    silent = config.get("model_type") == "llama" and all(one is None for one in said)
    return LLAMA_THETA if silent else config.get("rope_theta")


def _number(rope: dict[str, Any], name: str, path: Path) -> float:
    value = rope.get(name)
    wrong = not isinstance(value, bool) if name in FLAGS else isinstance(value, bool)
    if wrong or not isinstance(value, int | float) or (name not in FLAGS and not 0 < value < float("inf")):
        kind = "true or false" if name in FLAGS else "a positive number"
        raise UsageError(f"{path}: {name!r} must be {kind}, it is {value!r}")
    return value


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
    turned: np.ndarray = np.exp(1j * (positions[:, None].astype(np.float64) * frequencies))
    return turned


def pairs(x: np.ndarray) -> np.ndarray:
    """Half-split: dimension i pairs with i + D/2. [..., D] to complex128 [..., D/2]."""
    first, second = np.split(x.astype(np.float64), 2, axis=-1)
    paired: np.ndarray = first + 1j * second
    return paired


def dimensions(z: np.ndarray) -> np.ndarray:
    """The inverse of `pairs`: float64 [..., D]."""
    return np.concatenate([z.real, z.imag], axis=-1)


def interleaved_pairs(x: np.ndarray) -> np.ndarray:
    """Interleaved: dimension 2i pairs with 2i + 1. [..., D] to complex128 [..., D/2]."""
    return x[..., 0::2].astype(np.float64) + 1j * x[..., 1::2].astype(np.float64)


def interleaved_dimensions(z: np.ndarray) -> np.ndarray:
    """The inverse of `interleaved_pairs`: float64 [..., D]."""
    return np.stack([z.real, z.imag], axis=-1).reshape(*z.shape[:-1], -1)


def rotate(schedule: RopeSchedule, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The truth: x [S, N, D] at positions [S] as complex128 pairs [S, N, D/2]."""
    rotated: np.ndarray = schedule.concentration * turn(schedule.frequencies(), positions)[:, None] * pairs(x)
    return rotated


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
    largest: np.ndarray = ROTATION + U * positions[:, None] * slope
    return largest


def error(schedule: RopeSchedule, got: np.ndarray, x: np.ndarray, true: np.ndarray) -> np.ndarray:
    """|got - true| relative to the rotated pair: [S, N, D/2]. `true` and what `got` [S, N, D] holds are pairs."""
    relative: np.ndarray = np.abs(pairs(got) - true) / (schedule.concentration * np.abs(pairs(x)))
    return relative


def unit_heads(rng: Any, rows: int, heads: int, head_dim: int) -> np.ndarray:
    """Heads whose pairs all have length 1 and a random direction: float32 [S, N, D]."""
    return dimensions(np.exp(2j * np.pi * rng.random((rows, heads, head_dim // 2)))).astype(np.float32)
