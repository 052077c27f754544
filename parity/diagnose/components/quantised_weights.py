"""Weights that are off by what a quantisation does to them: block scales, zero points, a range that is cut."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parity.block_formats import CODES, nearest_codes
from parity.diagnose.components.parts import Parts, wide_parts
from parity.diagnose.components.weights import TABLE
from parity.diagnose.components.wrong import FULL, Component, WrongRows

BLOCKS = (32, 16, 64, 128)
"""Inputs of a block that has a scale of its own; MXFP4's have 32."""

ASKED = 256
"""Outputs by which it is chosen where weights end."""

DEVIATIONS, QUANTILES = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0), (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
"""Where a range of weights may end: in standard deviations, and in shares of all that are smaller."""

NEARLY, MOST = 0.1, 0.9
"""How near to a whole power of two a factor is one, and the share of the factors that have to be."""


def block_scales(wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts) -> Iterator[Component | None]:
    """Blocks of each output's weight that are of another size, each by a factor of its own: as by wrong scales.

    Args:
        weight: float64 [wrong columns, D].
    """
    error = wrong.error[:, wrong.columns]
    wide = wide_parts(parts, x.shape[1])
    for width in BLOCKS:
        if any((last - first) % width for _, first, last in wide):
            continue
        starts = [start for _, first, last in wide for start in range(first, last, width)]
        if len(starts) > wrong.error.shape[0] // 3 or len(starts) * error.size > TABLE:
            continue
        model, factors = np.empty_like(error), []
        for column, row in enumerate(weight):
            held = np.stack([x[:, start : start + width] @ row[start : start + width] for start in starts], axis=1)
            fitted = np.linalg.lstsq(held, error[:, column], rcond=None)[0]
            model[:, column] = held @ fitted
            factors += (1 + fitted[np.linalg.norm(held, axis=0) > 0]).tolist()
        powers = np.log2(np.maximum(np.abs(factors), 2.0**-20))
        whole = bool(np.mean(np.abs(powers - np.round(powers)) < NEARLY) > MOST and np.abs(np.round(powers)).any())
        says = f"each block of {width} inputs has a factor of its own{', powers of two' if whole else ''}: scales"
        yield wrong.judged(f"{wrong.where}{says}", model, len(starts) * len(weight))


def zero_points(wrong: WrongRows, x: np.ndarray, parts: Parts) -> Iterator[Component | None]:
    """Each output's weight off by a number of its own, the same for all inputs, or for those of a block."""
    error = wrong.error[:, wrong.columns]
    wide = wide_parts(parts, x.shape[1])
    for width in (0, *BLOCKS):
        if width and any((last - first) % width for _, first, last in wide):
            continue
        starts = [
            (one, one + (width or last - first)) for _, first, last in wide for one in range(first, last, width or last)
        ]
        if len(starts) > len(x) // 3:
            continue
        sums = np.stack([x[:, first:last].sum(axis=1) for first, last in starts], axis=1)
        fitted = np.linalg.lstsq(sums, error, rcond=None)[0]
        where = f" for each block of {width} inputs" if width else ""
        says = f"{wrong.where}each output's weight is off by a number of its own{where}: zero points"
        yield wrong.judged(says, sums @ fitted, fitted.size)


def codes(wrong: WrongRows, x: np.ndarray, weight: np.ndarray) -> Component | None:
    """Numbers of the weight that count by what MXFP4 has for them: codes that are read as others.

    Args:
        x: what enters but for biases, [R, D].
        weight: float64 [wrong columns, D].
    """
    if weight.size > TABLE:
        return None
    named, error = nearest_codes(weight), wrong.error[:, wrong.columns]
    parts = {code: x @ np.where(named == code, weight, 0.0).T for code in CODES}
    held = {code: part for code, part in parts.items() if part.any()}
    if not held:
        return None
    stacked = np.stack([part.ravel() for part in held.values()], axis=1)
    factors = np.linalg.lstsq(stacked, error.ravel(), rcond=None)[0]
    told = [(code, factor) for code, factor in zip(held, factors.tolist(), strict=True) if abs(factor) > FULL]
    if not told or len(told) == len(held):  # all of them: another scale
        return None
    read = " and ".join(f"{code:g} as {(1 + factor) * code:.3g}" for code, factor in told)
    model = sum(factor * held[code] for code, factor in told)
    return wrong.judged(f"{wrong.where}numbers of the weight that MXFP4 has read otherwise: {read}", model, len(told))


FEWER = 48
"""Outputs by which the size is chosen where what enters is cut."""

LIMITS, NARROWED, STEEP = 25, 3, 0.02
"""Sizes that are tried at once, how often they are tried closer together, and how far below the size the largest number
of a wrong row may be: the device's own noise."""


def clipped(wrong: WrongRows, x: np.ndarray, weight: np.ndarray) -> Component | None:
    """Weights whose size is cut: at so many deviations, or wherever it explains most.

    Args:
        weight: float64 [wrong columns, D].
    """
    some = np.unique(np.linspace(0, len(weight) - 1, min(len(weight), ASKED)).astype(int))
    error, asked = wrong.error[:, wrong.columns][:, some], weight[some]
    size, deviation = np.abs(asked), float(asked.std())
    limits = {float(times) * deviation: f" ({times:g} standard deviations)" for times in DEVIATIONS}
    limits |= dict.fromkeys(np.quantile(size[size > 0], QUANTILES).tolist() if size.any() else [], "")

    def left(limit: float) -> float:
        return float(((error - x @ (np.clip(asked, -limit, limit) - asked).T) ** 2).sum())

    best = min(limits, key=left)
    model = x @ (np.clip(weight, -best, best) - weight).T
    if not model.any():
        return None
    return wrong.judged(f"{wrong.where}weights cut to a size of {best:.3g}{limits[best]}", model, 1)


def saturated(wrong: WrongRows, x: np.ndarray, weight: np.ndarray) -> Iterator[Component | None]:
    """What enters cut at a size, wherever it explains most: one for all rows, then one for each.

    The limit of a format or of a scale that was calibrated; of a scale that is taken of some rows only.

    Args:
        x: what enters but for biases, [R, D].
        weight: float64 [wrong columns, D].
    """
    if x.size > TABLE:
        return
    for each in (False, True):
        sizes = _sizes_of_cuts(x, weight, wrong.error[:, wrong.columns], each)
        if not ((sizes > 0) & (sizes <= np.abs(x).max(axis=1) * (1 + STEEP))).all():
            continue  # each wrong row has something that is cut
        model = (np.clip(x, -sizes[:, None], sizes[:, None]) - x) @ weight.T
        to = f", each row at a size of its own ({sizes.min():.4g} to {sizes.max():.4g})"
        says = f"what enters is cut{to if each else f' to a size of {sizes[0]:.4g}'}"
        yield wrong.judged(f"{wrong.where}{says}", model, len(sizes) if each else 1)


def _sizes_of_cuts(x: np.ndarray, weight: np.ndarray, error: np.ndarray, each: bool) -> np.ndarray:
    """The size at which each row is cut that explains most of its error; the same for all rows unless `each`. [R]."""
    outputs = np.unique(np.linspace(0, len(weight) - 1, min(len(weight), FEWER)).astype(int))
    by, asked = weight[outputs].T, error[:, outputs]
    largest = np.abs(x).max(axis=1, initial=0.0)
    highest = largest if each else np.full(len(x), largest.max(initial=0.0))
    low, high = 0.02 * highest, highest
    for _ in range(1 + NARROWED):
        tried = np.linspace(low, high, LIMITS)
        left = np.stack([((asked - (np.clip(x, -cut, cut) - x) @ by) ** 2).sum(axis=1) for cut in tried[..., None]])
        best = left.argmin(axis=0) if each else np.full(len(x), left.sum(axis=1).argmin())
        found: np.ndarray = np.take_along_axis(tried, best[None], axis=0)[0]
        step = (high - low) / (LIMITS - 1)
        low, high = np.maximum(found - step, 0.0), np.minimum(found + step, highest)
    return found
