"""The noise floor of a row: what bfloat16 alone costs there, and never less than half a ULP."""

from __future__ import annotations

import numpy as np

HALF_ULP = 2.0**-9 / np.sqrt(3.0)
"""Relative RMS error of one rounding to bfloat16 (8 significant bits): uniform over half a ULP, at the
lower end of a binade. A floor below it is one lucky rounding (an embedding is exact), not a bound."""

NOISY = 0.9
"""A single row is held against this quantile of its stage's floors where its own is lower. Rows of one
stage are not equally noisy (6 router logits, a chained row behind a steep SwiGLU), and one rounding
tells little about one row: against the median, clean chained rows reach 4.1x, against this 2.4x."""

ALLOWED = 0.25
"""A bound that lets a quarter of the golden be wrong says nothing: another row's tensor, a lost expert or a lost
head is within it. What a bound allows is its multiple times the floor."""

WIDEST = ALLOWED / 3
"""A floor of which three times, where the default policy draws its line, is that quarter. bfloat16 through 36 layers
of five roundings each random-walks to 2^-9 * sqrt(180) = 2.6 %; the tiny pair's widest stage has 1.9 %."""


def row_floors(floor: np.ndarray, apart: np.ndarray, share: float = 0.5) -> np.ndarray:
    """Robust relative floors per row [R] from the bfloat16 reference's relative row errors [R].

    A row's floor is its own, the typical (`share`) row's, or half a ULP, whichever is largest: rows of
    one stage round alike, so a row below it was lucky. Rows set apart do not enter it.
    """
    typical = quantile(floor[~apart], share) if (~apart).any() else 0.0
    return np.maximum(np.maximum(floor, typical), HALF_ULP)


def quantile(values: np.ndarray, share: float = 0.5) -> float:
    """Linear between neighbours. `np.quantile` does the same after loading masked arrays: 60 ms a comparison."""
    ordered = np.sort(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    step = ordered[high] - ordered[low] if np.isfinite(ordered[high]) else ordered[high] if place > low else 0.0
    return float(ordered[low] + (place - low) * step)


def ratio(error: np.ndarray, floor: np.ndarray, weight: np.ndarray) -> float:
    """Pooled error over pooled floor: relative row errors [R] weighted by the rows' squared norms.

    An infinitely wrong row (an error where the golden is zero) makes the ratio infinite, never NaN.
    """
    total = float((floor**2 * weight).sum())
    if not np.isfinite(error).all():
        return float("inf")
    return float(np.sqrt((error**2 * weight).sum() / total)) if total > 0 else 0.0
