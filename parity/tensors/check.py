"""`compare_tensors` and `assert_parity`: both sides by name, each pair judged, one report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from parity.errors import UsageError
from parity.metrics.dtypes import is_exact
from parity.tensors.inputs import Arrays, arrays_of
from parity.tensors.judge import judge, same_memory, unit
from parity.tensors.presets import PRESETS, Bounds
from parity.tensors.report import TensorReport, TensorResult


def compare_tensors(
    actual: object,
    expected: object,
    *,
    bounds: Bounds | None = None,
    floor: object = None,
    check_dtype: bool = True,
    allow_constant: bool = False,
) -> TensorReport:
    """Compare what was computed with what should have been, by relative error; the report is true where all passes.

    Missing evidence fails: no tensors, a name that only one side has, another shape or dtype, NaN or infinities on
    either side, an expected tensor that is constant, two sides in the same memory.

    Args:
        actual, expected: an array (NumPy, torch, JAX, whatever has `__array__` or DLPack), a mapping of names to
            arrays, or the path of a .npy, .npz, .safetensors, .pt or .pth file.
        bounds: for every float tensor; by default those of its dtype (`parity.tensors.presets`), which suit a whole
            model's pass and are wide for a single kernel.
        floor: what the reference gives in the lower precision, in the form of `expected`: bounds become multiples of
            its error, which is the better judge. Excludes `bounds`.
        check_dtype: False compares two float dtypes by the coarser one's bounds, and integers by value.
        allow_constant: an expected tensor of one value only is compared as well.

    Raises:
        UsageError: a side is no array, mapping or readable file, or the floor does not fit.
    """
    if bounds is not None and floor is not None:
        raise UsageError("bounds and floor exclude each other: a floor makes bounds of its own")
    files = [Path(side) for side in (actual, expected) if isinstance(side, str | Path) and Path(side).exists()]
    if len(files) > 1 and files[0].samefile(files[1]):
        raise UsageError(f"actual and expected are one file: {files[0]}")
    sides = arrays_of(actual, "actual"), arrays_of(expected, "expected")
    floors = None if floor is None else arrays_of(floor, "floor")
    if floors is not None and (lacking := [name for name in sides[1] if name not in floors]):
        raise UsageError(f"floor lacks {_shown(lacking[0])}")
    results, blind = [], dict[str, None]()
    for name in [name for name in sides[1] if name in sides[0]]:
        result, unseen = _judged(name, *sides, floors, bounds, check_dtype, allow_constant)
        results.append(result)
        blind[unseen] = None
    return TensorReport(tuple(results), tuple(_names(*sides)), tuple(filter(None, blind)))


def assert_parity(
    actual: object,
    expected: object,
    *,
    bounds: Bounds | None = None,
    floor: object = None,
    check_dtype: bool = True,
    allow_constant: bool = False,
) -> None:
    """As `compare_tensors`, for a test.

    Raises:
        AssertionError: it does not pass; which tensor, its worst element, the first bad one, in relative terms and ULP.
        UsageError: a side is no array, mapping or readable file, or the floor does not fit.
    """
    __tracebackhide__ = True
    report = compare_tensors(
        actual, expected, bounds=bounds, floor=floor, check_dtype=check_dtype, allow_constant=allow_constant
    )
    if not report:
        raise AssertionError(str(report))


def _judged(
    name: str,
    actual: Arrays,
    expected: Arrays,
    floors: Arrays | None,
    bounds: Bounds | None,
    check_dtype: bool,
    allow_constant: bool,
) -> tuple[TensorResult, str]:
    """One tensor's result, and what its bounds do not see."""
    mine, true = actual[name](), expected[name]()
    floor = None if floors is None else floors[name]()
    if floor is not None and not is_exact(true.dtype):
        _check_floor(name, floor, true)
    result = judge(name, mine, true, bounds, floor, check_dtype, allow_constant)
    coarser = unit(mine, true)
    return result, "" if coarser is None or result.bounds is None else _unseen(coarser, result.bounds)


def _unseen(coarser: np.dtype[Any], used: Bounds) -> str:
    preset = PRESETS[coarser]
    said = preset.blind if used == preset.bounds else f"what stays below {used.l2:.3g} of a tensor"
    return f"{coarser.name}: {said}"


def _check_floor(name: str, floor: Any, expected: Any) -> None:
    if floor.shape != expected.shape or not np.isfinite(np.asarray(floor, np.float64)).all():
        raise UsageError(f"floor of {_shown(name)} has shape {list(floor.shape)}, or is not finite everywhere")
    if same_memory(floor, expected):
        raise UsageError(f"floor of {_shown(name)} is expected itself: it says nothing of rounding")


def _names(actual: Arrays, expected: Arrays) -> Iterator[str]:
    """What is wrong with the names of the two sides."""
    if not expected:
        yield "expected holds no tensor: nothing is compared"
    yield from (f"{_shown(name)} is missing in actual" for name in expected if name not in actual)
    yield from (f"{_shown(name)} is surplus: expected does not have it" for name in actual if name not in expected)


def _shown(name: str) -> str:
    return name or "a tensor without a name (a single array)"
