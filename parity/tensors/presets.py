"""How far two tensors may be apart by dtype, with the reason of each number, and what that does not see."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import sqrt
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from parity.errors import UsageError
from parity.metrics.dtypes import MANTISSA


@dataclass(frozen=True)
class Bounds:
    """What passes at most, each without a unit.

    Attributes:
        l2: ||actual - expected|| / ||expected||, of the whole tensor.
        worst_row: the same of the worst row: the last axis, or the last ones that hold 16 elements together; of a
            tensor of one axis or none it is `l2`'s.
        largest: the largest error of an element, over its own size or its row's root mean square, whichever is larger.

    Raises:
        UsageError: one is not above zero, or bounds nothing: a tensor of zeros has a relative error of 1.
    """

    l2: float
    worst_row: float
    largest: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float | np.number):
                raise UsageError(f"bound {field.name} = {value!r}: it has to be a number")
            if not 0 < value < 1:
                raise UsageError(
                    f"bound {field.name} = {value:g}: it has to be above 0 and below 1, the error of a tensor of zeros"
                )


class Preset(NamedTuple):
    """Bounds of a dtype and, in words, what they do not see."""

    bounds: Bounds
    blind: str


PRESETS = {
    np.dtype(ml_dtypes.bfloat16): Preset(
        Bounds(
            l2=2e-2,  # the references' own bfloat16 pass over the tiny pair is off by 1.3e-2 at its worst stage
            worst_row=1e-1,  # one row of it by 6.3e-2
            largest=3e-1,  # one element of it by 0.19 of its row's root mean square
        ),
        "what stays below 2 % of a tensor: a scale or bias 1 % off, noise doubled in a precise stage",
    ),
    np.dtype(np.float16): Preset(
        Bounds(
            l2=2.5e-3,  # bfloat16's: float16 has three bits more, a step that is an eighth
            worst_row=1.25e-2,  # the same eighth
            largest=4e-2,  # the same eighth
        ),
        "what stays below 0.25 % of a tensor: a scale or bias 0.1 % off, noise doubled in a precise stage",
    ),
    np.dtype(np.float32): Preset(
        Bounds(
            l2=1e-5,  # sums of about a thousand terms through a dozen layers: 2^-24 * sqrt(1000) * sqrt(12) = 7e-6
            worst_row=1e-4,  # one row may be ten times as sensitive
            largest=5e-4,  # of a million normal errors the largest is five deviations
        ),
        "what stays below 1e-5 of a tensor",
    ),
    np.dtype(np.float64): Preset(
        Bounds(
            l2=2e-14,  # as float32's with 2^-53: 1.2e-14
            worst_row=2e-13,  # one row may be ten times as sensitive
            largest=1e-12,  # of a million normal errors the largest is five deviations
        ),
        "what stays below 2e-14 of a tensor",
    ),
}
"""By the coarser dtype of the two. Figures of bfloat16: two chat prompts of the tiny pair, 126 stages."""


class Figures(NamedTuple):
    """A pair's errors, in the terms of `Bounds`."""

    l2: float
    worst_row: float
    largest: float


OVER_FLOOR = Figures(
    l2=3.0,  # the policy bfloat16 lists a stage from 1.5 times its noise on, and fails it from 3
    worst_row=3.0,  # the same policy's
    largest=5.0,  # the same policy's
)
"""Multiples of a floor's own error that pass."""


def over_floor(floor: Figures, dtype: np.dtype[Any], whose: str) -> Bounds:
    """What passes where the reference's own error in the lower precision is known; half a ULP is granted at least.

    Args:
        whose: floor it is, for the sentence.

    Raises:
        UsageError: the floor is so far off that it bounds nothing.
    """
    least = 2.0 ** -(MANTISSA[dtype] + 2) / sqrt(3)
    for name, times, own in zip(Figures._fields, OVER_FLOOR, floor, strict=True):
        if not times * own < 1:
            raise UsageError(
                f"floor of {whose} is too far from expected to bound anything: {name} = {own:.3g}, {times:g} times "
                f"that is {times * own:.3g}, and a tensor of zeros is off by 1"
            )
    return Bounds(*(times * max(own, least) for times, own in zip(OVER_FLOOR, floor, strict=True)))
