"""The logical rows of a stage inside a port's tensor: batch axis, order of axes and padding taken off and put back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parity.arrays import Array
from parity.errors import UsageError
from parity.stages import Named

Rows = int | slice | None
"""Which rows are logical: the first few, a slice of them, or all."""


@dataclass(frozen=True)
class Logical:
    """Where a stage's logical rows are in a port's tensor.

    Args:
        named: the stage.
        axes: letters of the port's axes, as `B G S D`: the stage's own in any order, and B. The stage's own, behind a B
            where there is one axis more, where empty.
        rows: of the stage's first axis.
        entry: of the batch axis.
    """

    named: Named
    axes: tuple[str, ...] = ()
    rows: Rows = None
    entry: int = 0

    def view(self, array: Array) -> Array:
        """The logical rows [R, ...], a view of `array`.

        Raises:
            UsageError: the axes are not the stage's, or it has fewer rows.
        """
        own = self.named.stage.axes
        axes = self.axes or (*["B"] * (array.ndim - len(own)), *own)
        if len(axes) != array.ndim or sorted(axis for axis in axes if axis != "B") != sorted(own):
            told = " ".join(axes) if self.axes else "none given"
            raise UsageError(
                f"{self.named.name} came with shape {list(array.shape)} (axes: {told}); the stage has {' '.join(own)}"
            )
        where = tuple(self.entry if axis == "B" else slice(None) for axis in axes)
        rows = array[where].transpose([[axis for axis in axes if axis != "B"].index(axis) for axis in own])
        if isinstance(self.rows, int) and self.rows > len(rows):
            raise UsageError(f"{self.named.name} has {len(rows)} rows, {self.rows} are logical")
        return rows if self.rows is None else rows[self.rows if isinstance(self.rows, slice) else slice(self.rows)]

    def exchanged(self, array: Array, taken: Array) -> Array:
        """A copy of `array` with `taken` in place of its logical rows.

        Raises:
            UsageError: there are more or fewer of them.
        """
        whole = np.array(array)
        rows = self.view(whole)
        if rows.shape != taken.shape:
            raise UsageError(f"{self.named.name}: the tap returned shape {list(taken.shape)} for {list(rows.shape)}")
        rows[...] = taken
        return whole
