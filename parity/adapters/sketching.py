"""Sketches made where a port's tensors are, by the library that they are of: NumPy, torch or JAX."""

from __future__ import annotations

from math import prod
from typing import Any

from parity.adapters.convert import replaced, to_numpy
from parity.arrays import Array
from parity.seam import SketchTap, Tap

_tables: dict[tuple[int, str, str], tuple[Array, Any]] = {}


def hand_sketched(tap: Tap, stage: str, value: Any) -> Any:
    """Hand a stage over as a sketch, where the tap takes one of it, and whole otherwise; what to continue with.

    One product in float32, whatever dtype `value` [R, ...] has; N + 2 numbers a row are read back. Logical rows only,
    as for a tap.
    """
    shape = tuple(value.shape)
    table = tap.projection(stage, prod(shape[1:])) if isinstance(tap, SketchTap) else None
    if table is None:
        array = to_numpy(value)
        taken = tap(stage, array)
        return value if taken is array else replaced(value, taken)
    rows = _wide(value.reshape(shape[0], -1))
    sums, squares = rows @ _placed(rows, table), (rows * rows).sum(-1)
    dtype = str(value.dtype).removeprefix("torch.")
    made: Array | None = tap.sketch(stage, to_numpy(sums), to_numpy(squares), shape, dtype)  # type: ignore[attr-defined]
    return value if made is None else replaced(value, made)


def _wide(rows: Any) -> Any:
    """In float32, by the rows' own library."""
    return rows.float() if hasattr(rows, "float") else rows.astype("float32")


def _placed(rows: Any, table: Array) -> Any:
    """The table in the library and place of the rows; the tap has the same one every time, so that it is moved once."""
    key = id(table), type(rows).__module__, str(getattr(rows, "device", ""))
    if key not in _tables:
        _tables[key] = table, replaced(rows, table)
    return _tables[key][1]
