"""Which rows of a layer's passes its cache keeps, told by their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

import torch
from torch import Tensor

from parity.references.products.rotated import Rotation, Span

SAME = 1e-3
"""How far a row in a cache may be from the one that a projection gave, of its size: a pass of other rows adds up in
another order."""


@dataclass
class KeptRows:
    """The rows, in the order in which the cache has them.

    Attributes:
        values: what the projection of values gave, pass by pass, [rows, G * D].
        rows: of each cached row that is new, (pass, row).
        places: (round, position) of each.
    """

    values: list[Tensor] = field(default_factory=list)
    rows: list[tuple[int, int]] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    before: int = 0
    read: int = 0
    round: int = 0

    def see(self, out: Tensor) -> None:
        """What the projection of values gives."""
        self.values.append(out.detach().flatten(0, -2))

    def keep(self, held: Tensor) -> None:
        """The cache's values [S, G, D] at the end of a round.

        Raises:
            LookupError: a row that no pass of the round gave.
        """
        for row in held.detach().flatten(1)[self.before :]:
            self.rows.append(self._next_row(row) or self._any_row(row))
        self.places += [(self.round, position) for position in range(self.before, len(held))]
        self.before, self.read, self.round = len(held), len(self.values), self.round + 1

    def _next_row(self, row: Tensor) -> tuple[int, int] | None:
        """The row behind the last one that was kept, where it is this one: rows of a pass mostly are kept in order."""
        place, number = self.rows[-1] if self.rows else (0, -1)
        if place < self.read or number + 1 >= len(self.values[place]):
            return None
        apart = float((self.values[place][number + 1] - row).norm())
        return (place, number + 1) if apart <= SAME * float(row.norm()) else None

    def _any_row(self, row: Tensor) -> tuple[int, int]:
        """The row of the round's passes that is nearest to this one, the last of several.

        Raises:
            LookupError: none is as near as a row that is the same.
        """
        apart = [(one - row).norm(dim=1) for one in self.values[self.read :]]
        if not apart or min(float(each.min()) for each in apart) > SAME * float(row.norm()):
            raise LookupError("a cached row is none that was made")
        at = max(range(len(apart)), key=lambda place: (-float(apart[place].min()), place))
        return self.read + at, int(apart[at].argmin())

    def meets(self, passes: Sequence[Tensor]) -> bool:
        """Whether passes have the rows that the projection had; context may enter it behind no norm of its own."""
        return [*map(len, passes)] == [*map(len, self.values)]

    def of(self, passes: Sequence[Tensor]) -> Tensor:
        """The rows kept of what passes hold [rows, ...]."""
        return torch.stack([passes[place][row] for place, row in self.rows])

    @property
    def runs(self) -> list[int]:
        """How many of these each pass gave, pass by pass."""
        return [len([*run]) for _, run in groupby(self.rows, key=itemgetter(0))]

    def spans(self, rotations: Sequence[Rotation | None]) -> list[Span]:
        """Runs of these that stand behind one another in a pass, with the rotation of the first."""
        runs: list[list[tuple[int, int]]] = []
        for place, row in self.rows:
            if not runs or runs[-1][-1] != (place, row - 1):
                runs.append([])
            runs[-1].append((place, row))
        found = []
        for run in runs:
            of, (place, row) = rotations[run[0][0]], run[0]
            found.append((of and of.from_row(row), len(run)))
        return found
