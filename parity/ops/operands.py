"""Seeded operands of an operation: ordinary numbers, and the patterns at which compilers break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from zlib import crc32

import numpy as np

from parity.ops.kinds import CHOOSES, COMPARES, DTYPES, MOVES
from parity.seam import Cut, Operand, Operation

Arrays = tuple[np.ndarray, ...]
CASES = ("ordinary", "edges")
WINNERS = {
    "any": (0, 1),
    "all": (1, 0),
    "sum": (0, 1),
    "min": (1.5, -3),
    "argmin": (1.5, -3),
    "max": (-1.5, 3),
    "argmax": (-1.5, 3),
}
"""Reductions with a third case: all terms alike but one, which decides, at the last place, the first, and others."""
ROW_SCALES = (1.0, 2.0**17, 2.0**-10, 2.0**5)
"""Rows in turn: as they are, beyond float16's largest, small, and residual-like."""
EXP_SCALES = (1.0, 8.0, 30.0, 2.0**-7)
MASKED = -1e30
_PLAIN = (0.0, -0.0, 1.0, 1.0, -1.0, 1.5, 3.0, -(2.0**-7), 2.0**-20, 2.0**17, -(2.0**17), 131008.0)
_LARGE = (*_PLAIN, MASKED)
_INFINITE = (*_LARGE, 3e38, -3e38, np.inf, -np.inf)
_EXPONENTS = (0.0, -0.0, 1.0, -1.0, 10.0, 80.0, -80.0, 100.0, MASKED)
_BITS = (*_INFINITE, np.nan)
"""Ties, both zeros, what a mask leaves, and where nothing is computed infinities and NaN: 0 times those is NaN."""


def operands(operation: Operation, seed: int) -> Iterator[tuple[str, Arrays]]:
    """The arrays of each case, by its name."""
    bounds = index_bounds(operation)
    if operation.name in WINNERS:
        yield "one decides", (_one_decides(np.random.default_rng([seed, 1]), operation),)
    for case in CASES:
        draw = np.random.default_rng([seed, crc32(f"{operation} {case}".encode())])
        arrays = [
            _ids(draw, one, bounds[number], case, operation.name == "setitem")
            if number in bounds and one.dtype != "bool"
            else _MADE[one.dtype](draw, one, case, operation.name)
            for number, one in enumerate(operation.operands)
        ]
        yield case, _in_domain(operation.name, arrays)


def index_bounds(operation: Operation) -> dict[int, int]:
    """Which operands are places along an axis, by number, and how long that axis is."""
    if operation.name in ("take", "take_along_axis"):
        return {1: operation.operands[0].shape[dict(operation.keywords).get("axis") or 0]}
    if operation.name not in ("getitem", "setitem"):
        return {}
    array, index = operation.arguments[:2]
    entries = index if isinstance(index, tuple) else (index,)
    bounds, axis, number = {}, 0, 1
    for entry in entries:
        if entry is ...:
            axis += len(array.shape) - sum(map(_axes, entries))
        elif isinstance(entry, Operand):
            bounds[number], number = array.shape[axis], number + 1
        axis += _axes(entry)
    return bounds


def _axes(entry: object) -> int:
    """How many axes an entry of an index takes."""
    if isinstance(entry, Operand) and entry.dtype == "bool":
        return len(entry.shape)
    return int(isinstance(entry, int | Cut | Operand))


def _ids(draw: np.random.Generator, operand: Operand, bound: int, case: str, written: bool) -> np.ndarray:
    """Places in no order, both ends among them; what is written to is written once, or is the last place."""
    count = int(np.prod(operand.shape))
    if not written or count > bound:
        places = draw.integers(0, bound, count)
        places[: min(2, count)] = (bound - 1, 0)[: min(2, count)]
    else:
        places = draw.permutation(bound)[:count]
        places[: (count // 2 if case == "edges" else 0)] = bound - 1
    return draw.permutation(places).reshape(operand.shape).astype(np.int32)


def _numbers(draw: np.random.Generator, operand: Operand, case: str, name: str) -> np.ndarray:
    shape, dtype = operand.shape, DTYPES[operand.dtype]
    lines, width = (shape[-2] if len(shape) > 1 else 1), (shape[-1] if shape else 1)
    if case == "ordinary":
        scales = np.array(EXP_SCALES if name == "exp" else ROW_SCALES)[np.arange(lines) % 4]
        some: np.ndarray = draw.standard_normal(shape, np.float32).reshape(-1, lines, width) * scales[:, None]
        return some.reshape(shape).astype(dtype)
    alphabet = np.array(_alphabet(name))
    some = alphabet[draw.integers(0, len(alphabet), (int(np.prod(shape)) // width, width))]
    some[0] = MASKED if MASKED in alphabet else 0.0  # a row that its mask leaves nothing of
    if len(some) > 1:
        some[len(some) // 2] = 1.5  # one of ties alone
    return some.reshape(shape).astype(dtype)


def _alphabet(name: str) -> tuple[float, ...]:
    if name in MOVES | {"astype"}:
        return _BITS
    if name in CHOOSES | COMPARES:
        return _INFINITE
    if name == "exp":
        return _EXPONENTS
    return _LARGE if name in ("add", "subtract", "sum", "mean", "cumsum") else _PLAIN


def _one_decides(draw: np.random.Generator, operation: Operation) -> np.ndarray:
    """Rows along the reduced axis, in each of which one term differs."""
    (operand,), axis = operation.operands, dict(operation.keywords).get("axis")
    shape = (int(np.prod(operand.shape)),) if axis is None else operand.shape
    array = np.full(shape, WINNERS[operation.name][0], DTYPES[operand.dtype])
    rows = np.moveaxis(array, -1 if axis is None else axis, -1)
    places = np.array(draw.integers(0, rows.shape[-1], rows.shape[:-1]))
    for row, place in enumerate((-1, 0)):
        places.reshape(-1)[row::4] = place % rows.shape[-1]
    np.put_along_axis(rows, places[..., None], array.dtype.type(WINNERS[operation.name][1]), axis=-1)
    return array.reshape(operand.shape)


def _whole(draw: np.random.Generator, operand: Operand, case: str, name: str) -> np.ndarray:
    low, high = (-2, 3) if case == "edges" else (0, 1000)
    return draw.integers(low, high, operand.shape, dtype=np.int32)


def _masks(draw: np.random.Generator, operand: Operand, case: str, name: str) -> np.ndarray:
    mask = draw.random(operand.shape) < (0.5 if case == "ordinary" else 0.1)
    if case == "edges" and mask.ndim:
        rows = mask.reshape(-1, mask.shape[-1])
        rows[0], rows[len(rows) // 2] = False, True  # of several rows; one alone is let through whole
    return mask


_MADE: dict[str, Callable[[np.random.Generator, Operand, str, str], np.ndarray]] = {
    "float32": _numbers,
    "bfloat16": _numbers,
    "int32": _whole,
    "bool": _masks,
}


def _in_domain(name: str, arrays: list[np.ndarray]) -> Arrays:
    """No division by zero and no root of what is negative: no program asks for them."""
    if name in ("sqrt", "log"):
        arrays[0] = np.abs(arrays[0])
    if name in ("divide", "floor_divide", "remainder", "log"):
        arrays[-1] = np.where(arrays[-1] == 0, arrays[-1].dtype.type(1), arrays[-1])
    return tuple(arrays)
