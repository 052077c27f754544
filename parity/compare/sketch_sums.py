"""The sums of a stage's rows as sketches tell them: tables of `parity.metrics.sums`, of device and floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod

import numpy as np

from parity.compare.records import Held
from parity.errors import UsageError
from parity.golden.keeping import FLOOR, Record
from parity.metrics import measure
from parity.metrics import sums as at
from parity.sketch import EXTRA, sketch


@dataclass(frozen=True, eq=False)
class Sums:
    """The rows of a stage as sketches tell them.

    Attributes:
        device, floor: tables of `parity.metrics.sums`, float64 [R, 8]; of the device the error's square is an estimate
            and the largest element unknown.
        error: the sketched error, float64 [R, N].
        broken: rows [R] in which golden, device or floor holds NaN or infinities.
    """

    device: np.ndarray
    floor: np.ndarray
    error: np.ndarray
    broken: tuple[np.ndarray, np.ndarray, np.ndarray]

    @classmethod
    def of(cls, tensors: Sequence[Held]) -> Sums:
        """Of all tensors of a stage, by one sketch.

        Raises:
            UsageError: the two sides were sketched by different signs.
        """
        count, seed = _sketch(tensors)
        parts = [_sums(one, count, seed) for one in tensors]
        device, floor, error, golden, own = (np.concatenate([part[place] for part in parts]) for place in range(5))
        unknown = ~np.isfinite(floor).all(axis=1)
        return cls(device, np.where(unknown[:, None], 0.0, floor), error, (golden, own, unknown & ~golden))


def _sketch(tensors: Sequence[Held]) -> tuple[int, int]:
    """Numbers and seed of the sketch that the sides have in common."""
    forms = {(side.form.sketch, side.form.seed) for one in tensors for side in one.sides if side.form.sketch}
    if len({seed for _, seed in forms}) > 1:
        seeds = " and ".join(map(str, sorted({seed for _, seed in forms})))
        raise UsageError(f"golden and run were sketched by the seeds {seeds}: sketches of one seed compare")
    return min(forms)


def _sums(one: Held, count: int, seed: int) -> tuple[np.ndarray, ...]:
    golden, device = (_numbers(side, count, seed) for side in one.sides[:2])
    width = prod(one.shape)
    bad = [~np.isfinite(side).all(axis=1) for side in (golden, device)]
    either = bad[0] | bad[1]
    golden, device = (np.where(either[:, None], 0.0, side) for side in (golden, device))
    error = device[:, :count] - golden[:, :count]
    table = np.zeros((len(golden), at.WIDTH))
    table[:, at.N] = np.where(either, 0, width)
    table[:, at.G], table[:, at.E] = golden[:, -1], device[:, -1] - golden[:, -1]
    table[:, at.GG] = np.square(golden[:, -2])
    table[:, at.EE] = np.where(either, inf, np.square(error).mean(axis=1))
    square = np.where(either, 0.0, table[:, at.EE])
    table[:, at.GE] = (np.square(device[:, -2]) - table[:, at.GG] - square) / 2
    table[:, at.MAX] = np.sqrt(table[:, at.EE])
    return table, _floor(one, table, width), error, *bad


def _numbers(side: Record, count: int, seed: int) -> np.ndarray:
    """Sketched rows, float64 [R, count + 2]: the first so many sums, the norm and the plain sum."""
    if not side.form.sketch:
        return sketch(side.rows, count, seed).astype(np.float64)
    kept = side.form.sketch
    numbers = side.rows[:, : kept + EXTRA].astype(np.float64)
    return np.concatenate([numbers[:, :count], numbers[:, kept:]], axis=1)


def _floor(one: Held, device: np.ndarray, width: int) -> np.ndarray:
    """The table of the noise floor, exact: as it is kept, or of whole tensors."""
    golden, floor = one.sides[0], one.sides[2]
    if not floor.form:
        if golden.form:
            raise UsageError("a golden holds its noise floors whole and the truth as a sketch")
        exact = np.array(measure(golden.rows, floor.rows, row_axes=1).rows.table)
        exact[~np.isfinite(floor.rows.reshape(len(floor.rows), width).astype(np.float32)).all(axis=1)] = np.nan
        return exact
    table = device.copy()
    numbers = floor.rows[:, :FLOOR].astype(np.float64)
    table[:, at.EE], table[:, at.GE], table[:, at.E], table[:, at.MAX] = np.square(numbers[:, 0]), *numbers[:, 1:].T
    return table
