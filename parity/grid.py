"""The numbers that a quantised cache can hold, and which of two keeps a value within rounding of their middle.

A value a hair from the middle of two numbers is kept as either, by rounding alone: a tie, as of two experts of equal
scores. In float32 two right implementations differ by so little that ties are rare, a few in each prompt; but one of
them changes every row that reads it by far more than float32's rounding does. So a float32 run is taken to the golden's
side of them, by no more than the rounding of the value itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from parity.kv_cache import KVFormats
from parity.stages import Named

DTYPES = {"fp8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "fp8_e5m2": np.dtype(ml_dtypes.float8_e5m2)}

NOISE = 1e-4
"""Of a row's RMS: how far apart the values of a tie may be. A float32 row that is as far off fails alone."""

DIVISION = 4 * 2.0**-24
"""Relative: what dividing by the scale, or multiplying by its inverse, may round, and one step more of either."""

ULPS = {"float32": 4, "bfloat16": 1}
"""How far from a number of the cache, in steps of the run's dtype, one that was read from it may be: in bfloat16 as far
as one whose scale was rounded to bfloat16 as well."""

BITS = {"float32": 23, "bfloat16": 7}
"""Of the mantissa, as stored."""


@dataclass(frozen=True)
class Grid:
    """The numbers of a format times a scale."""

    kind: str
    scale: float

    def nearest(self, values: NDArray[Any]) -> NDArray[Any]:
        """What values are kept as, over the scale: float32."""
        dtype = DTYPES[self.kind]
        largest = np.float32(ml_dtypes.finfo(dtype).max)
        with np.errstate(invalid="ignore"):
            over = np.clip(values.astype(np.float32) / np.float32(self.scale), -largest, largest)
            kept: NDArray[Any] = over.astype(dtype).astype(np.float32)
        return kept

    def settled(self, own: NDArray[Any], true: NDArray[Any]) -> NDArray[Any]:
        """Float32 rows [n, G, D], with the number that the golden's value is kept as where its own is tied with it.

        A value is tied that is the golden's up to rounding and that rounding may keep as another number.
        """
        size = np.sqrt(np.mean(np.square(true, dtype=np.float64), axis=(1, 2), keepdims=True))
        same, slack = np.abs(own - true) <= NOISE * size, np.abs(own) * np.float32(DIVISION)
        due = self.nearest(true)
        tips = (self.nearest(own - slack) != due) | (self.nearest(own + slack) != due)
        return np.where(same & tips, due * np.float32(self.scale), own).astype(own.dtype)

    def neighbours(self, one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
        """Which elements are kept as numbers next to each other, of one sign."""
        codes = (self.nearest(side).astype(DTYPES[self.kind]).view(np.uint8).astype(np.int16) for side in (one, other))
        mine, its = codes
        found: NDArray[Any] = np.abs(mine - its) == 1
        return found

    def pinned(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values, each with the number that it is kept as in its place where another way to divide may tip it."""
        wide = values.astype(np.float32)
        slack = np.abs(wide) * np.float32(DIVISION)
        tips = self.nearest(wide - slack) != self.nearest(wide + slack)
        return np.where(tips, self.nearest(wide) * np.float32(self.scale), wide).astype(values.dtype)

    def may_keep(self, values: NDArray[Any], kept: NDArray[Any]) -> NDArray[Any]:
        """Whether these numbers, over the scale, are what values are kept as, whichever way a tie goes."""
        slack = np.abs(values) * np.float32(DIVISION)
        found: NDArray[Any] = (self.nearest(values - slack) == kept) | (self.nearest(values + slack) == kept)
        return found

    def off(self, values: NDArray[Any], precision: str) -> NDArray[Any]:
        """Which values are none that such a cache gives back in this precision; not those that are not finite."""
        due = self.nearest(values).astype(np.float64) * self.scale
        _, exponent = np.frexp(np.where(due == 0, self.scale * np.finfo(np.float32).tiny, due))
        step = np.ldexp(1.0, exponent - 1 - BITS[precision])
        wide = values.astype(np.float64)
        finite = np.isfinite(wide)
        far: NDArray[Any] = finite & (np.abs(np.where(finite, wide, 0.0) - due) > ULPS[precision] * step)
        return far


class KeptCase(Protocol):
    """What a golden's case says of its caches: see `parity.golden.case.Case`."""

    @property
    def kv_cache(self) -> str:
        """Their formats."""

    @property
    def kv_scales(self) -> Mapping[Any, Mapping[Any, tuple[float, ...]]]:
        """Their scales, by side, part and layer."""


def grids(case: KeptCase, names: Mapping[str, Named], stage: str) -> dict[str, Grid]:
    """The grids of a golden's caches under full stage names.

    Args:
        stage: `kv` for the names of the caches, `layers` for those of what is written to them.
    """
    formats, found = KVFormats.parse(case.kv_cache), {}
    for side, parts in case.kv_scales.items():
        for part, scales in parts.items():
            for layer, scale in enumerate(scales):
                name = f"kv.{side}.{layer}.{part}" if stage == "kv" else f"{side}.layers.{layer}.{part}"
                if name in names:
                    found[name] = Grid(getattr(formats, side), scale)
    return found
