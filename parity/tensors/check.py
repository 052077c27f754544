"""`compare_tensors` and `assert_parity`: both sides by name, each pair judged, one report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from parity.errors import UsageError
from parity.metrics.dtypes import is_exact, is_float8
from parity.tensors.hidden import MUCH
from parity.tensors.inputs import Arrays, arrays_of
from parity.tensors.judge import is_rounding, judge, same_bits, same_memory, shared_errors, unit
from parity.tensors.presets import PRESETS, Bounds
from parity.tensors.report import TensorReport, TensorResult, shown

COPIED = 0.5
"""Share of the errors beyond a rounding that a floor may have in common with what is judged: two ways to round one
sum, each off by several ULP, seldom meet in the same bits."""


def compare_tensors(
    actual: object,
    expected: object,
    *,
    bounds: Bounds | None = None,
    floor: object = None,
    check_dtype: bool = True,
    allow_constant: bool = False,
    names: str | Path | None = None,
) -> TensorReport:
    """Compare what was computed with what should have been, by relative error; the report is true where all passes.

    Missing evidence fails: no tensors, a name that only one side has, another shape or dtype, NaN or infinities on
    either side, an expected tensor that is constant, two sides in the same memory.

    Args:
        actual, expected: an array (NumPy, torch, JAX, whatever has `__array__` or DLPack), a mapping of names to
            arrays, or the path of a .npy, .npz, .safetensors, .pt, .pth or .bin file, of a folder of them, or of a
            checkpoint. A file of one array without a name is compared with the only tensor of another file.
        bounds: for every float tensor; by default those of its dtype (`parity.tensors.presets`), which suit a whole
            model's pass and are wide for a single kernel.
        floor: what the reference gives in the lower precision, in the form of `expected`: bounds become multiples of
            its error, which is the better judge. Excludes `bounds`.
        check_dtype: False compares two float dtypes by the coarser one's bounds, and integers by value.
        allow_constant: an expected tensor of one value only is compared as well.
        names: a map from the names of actual to those of expected (`parity.tensors.names`); a floor has expected's.

    Raises:
        UsageError: a side is no array, mapping or readable file, or the floor does not fit.
    """
    if bounds is not None and not isinstance(bounds, Bounds):
        raise UsageError(f"bounds is a {type(bounds).__name__}: parity.Bounds(l2=…, worst_row=…, largest=…) is due")
    if bounds is not None and floor is not None:
        raise UsageError("bounds and floor exclude each other: a floor makes bounds of its own")
    _refuse_unfit_files(actual, expected, floor)
    sides = arrays_of(actual, "actual"), arrays_of(expected, "expected")
    ignored: dict[str, str] = {}
    if names is not None:
        from parity.tensors.names import paired, read_pairs

        mine, true, ignored = paired(*sides, read_pairs(Path(names)))
        sides = mine, true
    elif _is_file(actual) and _is_file(expected) and len(sides[0]) == len(sides[1]) == 1:
        sides = _only_pair(*sides)
    floors = None if floor is None else arrays_of(floor, "floor")
    if floors is not None and (lacking := [name for name in sides[1] if name not in floors]):
        raise UsageError(f"floor lacks {shown(lacking[0])}")
    results, blind = [], dict[str, None]()
    for name in [name for name in sides[1] if name in sides[0]]:
        result, unseen = _judged(name, *sides, floors, bounds, check_dtype, allow_constant)
        results.append(result)
        blind |= dict.fromkeys(unseen)
    missing = tuple(name for name in sides[1] if name not in sides[0])
    surplus = tuple(name for name in sides[0] if name not in sides[1])
    return TensorReport(tuple(results), missing, surplus, tuple(blind), ignored)


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


def _is_file(side: object) -> bool:
    return isinstance(side, str | Path)


def _refuse_unfit_files(actual: object, expected: object, floor: object) -> None:
    """Refuse dumps, and one file as two sides."""
    from parity.tensors.files import refuse_dumps

    sides = [Path(side) for side in (actual, expected) if isinstance(side, str | Path)]
    for several in (sides, [Path(floor)] if isinstance(floor, str | Path) else []):
        if several:
            refuse_dumps(*several)
    if len(sides) > 1 and all(side.exists() for side in sides) and sides[0].samefile(sides[1]):
        raise UsageError(f"actual and expected are one file or folder: {sides[0]}")


def _only_pair(actual: Arrays, expected: Arrays) -> tuple[Arrays, Arrays]:
    """Two sides of one tensor each: a bare array takes the other's name."""
    (mine, read), (true, _) = *actual.items(), *expected.items()
    return ({true: read}, expected) if not (mine and true) else (actual, expected)


def _judged(
    name: str,
    actual: Arrays,
    expected: Arrays,
    floors: Arrays | None,
    bounds: Bounds | None,
    check_dtype: bool,
    allow_constant: bool,
) -> tuple[TensorResult, list[str]]:
    """One tensor's result, and what its bounds do not see."""
    mine, true = actual[name](), expected[name]()
    floor = None if floors is None else floors[name]()
    if floor is not None and not (is_exact(true.dtype) or is_float8(true.dtype)):
        _check_floor(name, floor, mine, true)
    result = judge(name, mine, true, bounds, floor, check_dtype, allow_constant)
    coarser = unit(mine, true)
    return result, [] if coarser is None or result.bounds is None else list(_unseen(result, coarser, result.bounds))


def _unseen(result: TensorResult, coarser: np.dtype[Any], used: Bounds) -> Iterator[str]:
    preset = PRESETS[coarser]
    said = preset.blind if used == preset.bounds else f"what stays below {used.l2:.3g} of a tensor"
    yield f"{coarser.name}: {said}"
    if result.hidden >= MUCH:
        share = f"{result.hidden:.0%} of its numbers, each below {used.l2:.3g} of its row's size"
        yield f"{shown(result.name)}: {share}; compare it without its largest"


def _check_floor(name: str, floor: Any, actual: Any, expected: Any) -> None:
    if floor.shape != expected.shape:
        raise UsageError(f"floor of {shown(name)} has shape {list(floor.shape)}, expected {list(expected.shape)}")
    if not np.isfinite(np.asarray(floor, np.float64)).all():
        raise UsageError(f"floor of {shown(name)} is not finite everywhere")
    if same_memory(floor, expected):
        raise UsageError(f"floor of {shown(name)} is expected itself: it says nothing of rounding")
    if same_memory(floor, actual) or (same_bits(floor, actual) and not is_rounding(actual, expected)):
        raise UsageError(f"floor of {shown(name)} is actual itself, bit for bit: its error is what is judged")
    if (share := shared_errors(floor, actual, expected)) > COPIED:
        what = f"{share:.0%} of the elements that are off by more than a rounding"
        raise UsageError(f"floor of {shown(name)} is actual itself in {what}: its error is what is judged")
