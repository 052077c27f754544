"""Other ramps between frequencies that a rotary schedule keeps and those that it divides by its factor.

YaRN (Peng et al. 2023, section 3.2) has its ramp over pairs of dimensions, llama3 over turns in the original context.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from parity.references.hypotheses.catalogue import Family, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, rope, torch
from parity.references.hypotheses.masks import TABLE
from parity.references.hypotheses.mutating import NotApplicable, changed
from parity.references.hypotheses.rope import ROPE_FIX, frequencies_of, parameters_of

Bounds = tuple[float, float]
Ramp = Callable[[Tensor, Bounds], Tensor]
"""From places [D / 2] and the ramp's bounds to how much each is divided, before it is clipped to 0 and 1."""


def _straight(places: Tensor, bounds: Bounds) -> Tensor:
    return (places - bounds[0]) / (bounds[1] - bounds[0])


def _times(factor: float) -> Ramp:
    return lambda places, bounds: _straight(places, (factor * bounds[0], factor * bounds[1])).clamp(0, 1)


RAMPS: dict[str, Ramp] = {
    "has bounds twice as large: elements of a head, where pairs are meant": _times(2.0),
    "has bounds half as large: pairs of a head, where elements are meant": _times(0.5),
    "is not clipped to 0 and 1": _straight,
    "keeps what it should divide": lambda places, bounds: 1 - _straight(places, bounds).clamp(0, 1),
    "is a step at its beginning": lambda places, bounds: (_straight(places, bounds) > 0).double(),
    "is a step at its end": lambda places, bounds: (_straight(places, bounds) >= 1).double(),
    "is smooth: 3 x^2 - 2 x^3": lambda places, bounds: _smooth(_straight(places, bounds).clamp(0, 1)),
}
"""Each by what it does instead."""


def _smooth(x: Tensor) -> Tensor:
    return 3 * x**2 - 2 * x**3


def _yarn(parameters: dict[str, Any], size: int) -> tuple[Tensor, Bounds]:
    """Numbers of the pairs, and between which of them the ramp lies."""

    def pair(turns: float) -> float:
        length = float(parameters["original_max_position_embeddings"])
        return size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(float(parameters["rope_theta"])))

    low, high = pair(parameters.get("beta_fast", 32.0)), pair(parameters.get("beta_slow", 1.0))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, size - 1.0)
    return torch.arange(size // 2, dtype=torch.float64), (low, max(high, low + 1e-3))


def _llama3(parameters: dict[str, Any], plain: Tensor) -> tuple[Tensor, Bounds]:
    """How often each pair turns in the original context, and from how many turns to how few the ramp lies."""
    turns = float(parameters["original_max_position_embeddings"]) * plain / (2 * math.pi)
    return turns, (float(parameters["high_freq_factor"]), float(parameters["low_freq_factor"]))


ramps = Family(stages=TABLE, fix=ROPE_FIX)


@ramps.both("rope-ramp", "the ramp between frequencies kept and divided {value}", values=tuple(RAMPS))
def _(loop: Loop, value: str, side: str) -> Mutation:
    parameters, buffer = parameters_of(loop, side), frequencies_of(loop, side)
    kind, size = parameters.get("rope_type", "default"), 2 * len(buffer)
    if kind not in ("yarn", "llama3"):
        raise NotApplicable(f"rope_type {kind} has no ramp")
    plain, _ = rope.schedule({"rope_type": "default", "rope_theta": parameters["rope_theta"]}, size)
    places, bounds = _yarn(parameters, size) if kind == "yarn" else _llama3(parameters, plain)
    divided = RAMPS[value](places, bounds)
    other = plain * (1 - divided) + plain / float(parameters["factor"]) * divided
    return changed(buffer, lambda now: other.to(now.dtype))
