"""Two runs of one sequence, tensor by tensor: the same bits, or how far which row is from its bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from parity.gates.rollback.sameness import StageTensors, WithinNoise, changed_row
from parity.trace import Recorded

W = TypeVar("W")


@dataclass(frozen=True)
class DifferingRow(Generic[W]):
    """A row that is another one in the second run.

    Attributes:
        where: which pair of runs.
        apart: its distance as a multiple of its bound; infinite for what may not differ, or is there in one run only.
    """

    where: W
    round: int
    stage: str
    row: int
    apart: float


@dataclass
class Difference(Generic[W]):
    """What pairs of runs differ in.

    Attributes:
        tensors: how many were compared.
        moved: how many have other bits.
        worst: the largest distance of a row.
        first: the row beyond its bound in the earliest round.
        furthest: of the rows within their bounds.
    """

    within: WithinNoise
    tensors: int = 0
    moved: int = 0
    worst: float = 0.0
    first: DifferingRow[W] | None = None
    furthest: DifferingRow[W] | None = None

    def add(self, before: Recorded, now: Recorded, where: W) -> None:
        """Compare two runs; a round or a stage that only one of them has is beyond every bound."""
        for round_, stage, old, new in _pairs(before, now):
            self.tensors += 1
            if stage in old and stage in new and changed_row(old[stage], new[stage]) is None:
                continue
            self.moved += 1
            apart = self.within.apart(stage, old, new)
            beyond = np.flatnonzero(apart > 1.0)
            row = int(beyond[0] if beyond.size else apart.argmax())
            self.worst = max(self.worst, float(apart.max()))
            self._keep(DifferingRow(where, round_, stage, row, float(apart[row])))

    def _keep(self, found: DifferingRow[W]) -> None:
        if found.apart > 1.0:
            self.first = found if self.first is None or found.round < self.first.round else self.first
        elif self.furthest is None or found.apart > self.furthest.apart:
            self.furthest = found


def _pairs(before: Recorded, now: Recorded) -> Iterator[tuple[int, str, StageTensors, StageTensors]]:
    """Every round and stage of either run, with the round's tensors of both."""
    rounds: list[dict[int, dict[str, np.ndarray]]] = [{round_: {} for round_, _ in (*before, *now)} for _ in range(2)]
    for run, tensors in zip(rounds, (before, now), strict=True):
        for (round_, stage), value in tensors.items():
            run[round_][stage] = value
    for round_, old in rounds[0].items():
        for stage in dict.fromkeys((*old, *rounds[1][round_])):
            yield round_, stage, old, rounds[1][round_]
