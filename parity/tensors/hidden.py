"""What lies so far below the rest of its row that no error of it shows: beside a mask's numbers, or a few huge ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SAMPLED = 1 << 18
"""Elements that are looked at at a time; of a larger tensor so many first, spread evenly."""

MUCH = 0.5
"""From this share on of what is not zero, a comparison is of the smaller part of the tensor."""


@dataclass(frozen=True)
class Hidden:
    """What does not show of a tensor.

    Attributes:
        share: of its elements that are not zero, how many an L2 bound does not see, whatever stands in their place.
        beside: the only number that shows; None where several do, or nothing is hidden.
    """

    share: float = 0.0
    beside: float | None = None


def hidden(expected: NDArray[Any], sizes: NDArray[np.float64], bound: float) -> Hidden:
    """What an L2 bound does not see: elements below `bound` times their row's size, which together stay within it.

    Args:
        expected: any shape; its first axes number the rows.
        sizes: root mean square of every row, [rows].
    """
    table = expected.reshape(len(sizes), -1)
    apart = max(1, table.shape[1] // SAMPLED)
    step = max(1, len(sizes) * (table.shape[1] // apart) // SAMPLED)
    sample = table[::step, ::apart]
    found = _looked_at(sample, sizes[::step], bound)
    return found if found.beside is None or sample.size == table.size else _looked_at(table, sizes, bound)


def _looked_at(table: NDArray[Any], sizes: NDArray[np.float64], bound: float) -> Hidden:
    """The same of some rows, [rows, width]."""
    lost = there = 0
    lowest, highest = np.inf, -np.inf
    block = max(1, SAMPLED // table.shape[1])
    for begin in range(0, len(table), block):
        part = np.asarray(table[begin : begin + block], np.float64)
        below = np.abs(part) <= bound * sizes[begin : begin + block, None]
        lost += int(np.count_nonzero(part[below]))
        there += int(np.count_nonzero(part))
        lowest = min(lowest, part.min(initial=np.inf, where=~below))
        highest = max(highest, part.max(initial=-np.inf, where=~below))
    return Hidden(lost / there, float(lowest) if lowest == highest else None) if lost else Hidden()
