"""One pair of arrays: measured by `parity.metrics`, judged by bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from parity.metrics import PairMetrics, measure, measure_exact
from parity.metrics.dtypes import distance, is_exact, is_float, is_float8, ordinals, unit_of
from parity.tensors.hidden import Hidden, hidden
from parity.tensors.presets import PRESETS, Bounds, Figures, over_floor
from parity.tensors.report import Element, TensorResult, shown

CHUNK = 1 << 20
"""Elements looked at in one go when the first bad one is searched."""

SHORT = 16
"""A row of fewer elements has an error of its own that no bound of rows is made for: one of a single element that
nearly cancels is off by any factor. Such rows are read as parts of longer ones."""

INFINITE = float(np.finfo(np.float32).max) / 2
"""From here on a number is no result: masks hold the most negative one of float32 or bfloat16."""

NAMES = {"l2": "relative L2", "worst_row": "worst row", "largest": "largest element"}


def judge(
    name: str,
    actual: NDArray[Any],
    expected: NDArray[Any],
    bounds: Bounds | None = None,
    floor: NDArray[Any] | None = None,
    check_dtype: bool = True,
    allow_constant: bool = False,
) -> TensorResult:
    """What one pair came to; see `parity.compare_tensors` for the options.

    Raises:
        UsageError: the floor does not fit the pair, or bounds nothing.
    """
    asked = name, expected.shape, expected.dtype.name
    if is_float8(expected.dtype) or is_float8(actual.dtype):
        if actual.dtype != expected.dtype:
            return TensorResult(*asked, (f"dtype {actual.dtype.name}, expected {expected.dtype.name}",))
        if reason := _nonfinite(measure(*(side.astype(np.float32) for side in (expected, actual)))):
            return TensorResult(*asked, (reason,))
        actual, expected = actual.view(np.uint8), expected.view(np.uint8)
    reasons = tuple(_unfit(actual, expected, check_dtype)) or tuple(_empty(actual, expected, allow_constant))
    if reasons:
        return TensorResult(*asked, reasons)
    if is_exact(expected.dtype):
        return _exact(asked, actual, expected)
    return _floats(asked, actual, expected, bounds, floor)


def unit(actual: NDArray[Any], expected: NDArray[Any]) -> np.dtype[Any] | None:
    """The coarser dtype of two floats, whose preset applies; None for anything else."""
    both = is_float(actual.dtype) and is_float(expected.dtype)
    return unit_of(expected.dtype, actual.dtype) if both else None


def same_memory(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays of one shape are the same bytes."""
    return one.strides == other.strides and one.ctypes.data == other.ctypes.data


def same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays hold the same bytes, wherever they lie."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    mine, theirs = (np.ascontiguousarray(side).reshape(-1).view(np.uint8) for side in (one, other))
    return bool(np.array_equal(mine, theirs))


FORMATS = tuple(map(np.dtype, (np.float32, np.float16, ml_dtypes.bfloat16)))
"""What numbers are rounded to before they are kept in a wider dtype."""

SEVERAL = 16
"""Errors beyond a rounding from which a share of them says something."""


def shared_errors(one: NDArray[Any], other: NDArray[Any], expected: NDArray[Any]) -> float:
    """Of the elements that `other` has wrong by more than a rounding, the share of which `one` has the same number.

    Numbers are those of the coarsest dtype of the three; 0 for fewer than `SEVERAL` or where dtypes are not measured.
    """
    coarser = unit(one, other)
    if coarser is None or not is_float(expected.dtype) or not one.shape == other.shape == expected.shape:
        return 0.0
    coarser = unit_of(coarser, expected.dtype)
    mine, theirs, true = (ordinals(side.reshape(-1), coarser) for side in (one, other, expected))
    off = distance(true, theirs) > 1
    with np.errstate(over="ignore"):
        for low in FORMATS:
            off &= theirs != ordinals(expected.reshape(-1).astype(low), coarser)
    return float((mine == theirs)[off].mean()) if off.sum() >= SEVERAL else 0.0


def is_rounding(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether an array holds another's numbers rounded once to a format, or as they are."""
    with np.errstate(over="ignore"):
        return any(same_bits(one, other.astype(low).astype(one.dtype)) for low in (other.dtype, *FORMATS))


def _unfit(actual: NDArray[Any], expected: NDArray[Any], check_dtype: bool) -> Iterator[str]:
    if actual.shape != expected.shape:
        yield f"shape {list(actual.shape)}, expected {list(expected.shape)}"
    if actual.dtype != expected.dtype and check_dtype:
        yield f"dtype {actual.dtype.name}, expected {expected.dtype.name}"
    if is_exact(actual.dtype) != is_exact(expected.dtype):
        yield f"{actual.dtype.name} and {expected.dtype.name} are not compared: one is exact"
    elif not is_exact(expected.dtype) and unit(actual, expected) is None:
        yield f"{actual.dtype.name} and {expected.dtype.name} are not measured"


def _empty(actual: NDArray[Any], expected: NDArray[Any], allow_constant: bool) -> Iterator[str]:
    """Why equal values would prove nothing."""
    if not expected.size:
        yield "it has no element"
    elif same_memory(actual, expected):
        yield "actual and expected lie in the same memory: it would be compared with itself"
    elif not allow_constant and expected.size > 1 and (expected == expected.flat[0]).all():
        yield f"all of expected is {expected.flat[0]}: whatever is constant would pass (allow_constant=True takes it)"


def _exact(asked: tuple[str, tuple[int, ...], str], actual: NDArray[Any], expected: NDArray[Any]) -> TensorResult:
    found = measure_exact(expected, actual)
    if not found.mismatches or found.first is None:
        return TensorResult(*asked, l2=0.0, worst_row=0.0, largest=0.0)
    first = Element(found.first, int(expected[found.first]), int(actual[found.first]))
    reasons = (f"{found.mismatches} of {found.size} elements differ, by {found.worst} at most",)
    infinite = float("inf")
    return TensorResult(*asked, reasons, infinite, infinite, infinite, first_bad=first)


def _floats(
    asked: tuple[str, tuple[int, ...], str],
    actual: NDArray[Any],
    expected: NDArray[Any],
    bounds: Bounds | None,
    floor: NDArray[Any] | None,
) -> TensorResult:
    coarser = unit_of(expected.dtype, actual.dtype)
    rows = _leading(expected.shape)
    measured = measure(expected, actual, row_axes=rows)
    if reason := _nonfinite(measured) or _masked(measured, coarser):
        return TensorResult(*asked, (reason,), first_bad=_first_nonfinite(actual, expected, coarser))
    figures = _figures(measured, actual, expected)
    if floor is not None:
        own = measure(expected, floor, row_axes=rows)
        bounds = over_floor(_figures(own, floor, expected), coarser, shown(asked[0]))
    bounds = bounds or PRESETS[coarser].bounds
    unseen = hidden(expected, _row_sizes(measured).reshape(-1), bounds.l2)
    reasons = (*_beyond(figures, bounds, measured), *_alone(unseen))
    worst = measured.worst_element
    return TensorResult(
        *asked,
        reasons,
        *figures,
        bounds,
        worst=_element(worst.index, actual, expected, coarser) if worst else None,
        first_bad=_first_beyond(actual, expected, measured, bounds, coarser) if reasons else None,
        hidden=unseen.share,
    )


def _leading(shape: tuple[int, ...]) -> int:
    """How many of the first axes number the rows: all but the last ones that hold SHORT elements together."""
    leading = max(len(shape) - 1, 0)
    while leading and np.prod(shape[leading:]) < SHORT:
        leading -= 1
    return leading


def _nonfinite(measured: PairMetrics) -> str:
    """What keeps a pair from being measured, in words; '' where nothing does."""
    counts = measured.nonfinite
    parts = {
        "NaN in actual": counts.device_nan,
        "infinite in actual": counts.device_inf,
        "NaN in expected": counts.golden_nan,
        "infinite in expected": counts.golden_inf,
    }
    said = "; ".join(f"{count} elements are {what}" for what, count in parts.items() if count)
    rows = measured.rows
    overflows = not said and not np.isfinite(rows.golden_sq.sum() + rows.error_sq.sum())
    return "its squares overflow float64: it is not measured" if overflows else said


def _masked(measured: PairMetrics, coarser: np.dtype[Any]) -> str:
    """Whether a number stands for infinity, as in an additive mask; '' where none does."""
    if coarser == np.float64 or measured.rows.golden_sq.max(initial=0.0) < INFINITE**2:
        return ""
    return "expected holds numbers that stand for infinity (a mask): no error beside them shows; compare `mask < 0`"


def _alone(unseen: Hidden) -> Iterator[str]:
    """Why a pair of which one number shows proves nothing."""
    if unseen.beside is not None:
        yield (
            f"nothing of expected shows but {unseen.beside:g}: every other number is too small beside it (a mask?); "
            f"compare them without it"
        )


def _figures(measured: PairMetrics, actual: NDArray[Any], expected: NDArray[Any]) -> Figures:
    worst_row = measured.worst_row.rel_l2 if measured.worst_row else measured.rel_l2
    return Figures(measured.rel_l2, worst_row, _largest(measured, actual, expected))


def _largest(measured: PairMetrics, actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest error of an element, over its own size or its row's RMS.

    Over its row's RMS it is known; an element's own size only lowers it, so rows are read again, the worst first, until
    no other can be worse.
    """
    sizes = _row_sizes(measured).reshape(-1, 1)
    highest = measured.rows.max_abs.reshape(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        upper = np.where(highest > 0, highest / sizes[:, 0], 0.0)
    table = [side.reshape(len(upper), -1) for side in (actual, expected)]
    order, block, largest = np.argsort(-upper, kind="stable"), max(1, CHUNK // table[0].shape[1]), 0.0
    for begin in range(0, len(order), block):
        rows = order[begin : begin + block]
        if upper[rows[0]] <= largest:
            break
        largest = max(largest, float(_errors(table[0][rows], table[1][rows], sizes[rows]).max()))
    return largest


def _row_sizes(measured: PairMetrics) -> NDArray[np.float64]:
    """Root mean square of every row of expected."""
    rows = measured.rows
    return np.asarray(np.sqrt(rows.golden_sq / np.maximum(rows.count, 1)))


def _errors(actual: NDArray[Any], expected: NDArray[Any], size: Any) -> NDArray[np.float64]:
    """Each element's error over its own size or its row's; inf where both are zero and there is one."""
    true = np.asarray(expected, dtype=np.float64)
    apart = np.abs(np.asarray(actual, dtype=np.float64) - true)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(apart > 0, apart / np.maximum(np.abs(true), size), 0.0))


def _beyond(figures: Figures, bounds: Bounds, measured: PairMetrics) -> Iterator[str]:
    row = measured.worst_row
    for name, said in NAMES.items():
        value, bound = getattr(figures, name), getattr(bounds, name)
        at = f" {list(row.index)}" if name == "worst_row" and row and row.index else ""
        if not value <= bound:
            yield f"{said}{at} is off by {value:.3g}, bound {bound:.3g}"


def _first_beyond(
    actual: NDArray[Any], expected: NDArray[Any], measured: PairMetrics, bounds: Bounds, coarser: np.dtype[Any]
) -> Element | None:
    """In C order the first element whose error is beyond the L2 bound of its row's size; a failing tensor has one."""
    sizes = _row_sizes(measured)
    rows = measured.rows.max_abs > bounds.l2 * sizes
    for place in np.flatnonzero(rows):
        row = np.unravel_index(place, rows.shape) if rows.shape else ()
        apart = np.abs(np.asarray(actual[row], np.float64) - np.asarray(expected[row], np.float64))
        bad = np.atleast_1d(apart > bounds.l2 * sizes[row])
        if bad.any():
            within = np.unravel_index(int(bad.argmax()), bad.shape) if expected.ndim else ()
            return _element((*map(int, row), *map(int, within)), actual, expected, coarser)
    return None


def _first_nonfinite(actual: NDArray[Any], expected: NDArray[Any], coarser: np.dtype[Any]) -> Element | None:
    flat = [side.reshape(-1) for side in (actual, expected)]
    for begin in range(0, expected.size, CHUNK):
        parts = [np.isfinite(side[begin : begin + CHUNK]) for side in flat]
        bad = ~(parts[0] & parts[1])
        if bad.any():
            index = np.unravel_index(begin + int(bad.argmax()), expected.shape)
            return _element(tuple(map(int, index)), actual, expected, coarser)
    return None


def _element(index: tuple[int, ...], actual: NDArray[Any], expected: NDArray[Any], coarser: np.dtype[Any]) -> Element:
    true, mine = np.asarray(expected[index]), np.asarray(actual[index])
    values = float(true), float(mine)
    if not np.isfinite(values).all():
        return Element(index, *values)
    apart = distance(ordinals(true.reshape(1), coarser), ordinals(mine.reshape(1), coarser))
    return Element(index, *values, ulp=int(apart[0]), unit=coarser.name)
