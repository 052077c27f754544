"""Rows behind experts of a run's own: where it went on with others than the golden's.

Such a row runs through other weights from there on, and says nothing of rounding where it is laid on the golden. It is
judged against the reference run again with the run's experts (`basis`), or, where that cannot be had, set apart: then
nothing is known of it, and nothing passes. A run whose experts were forced has no such rows, whatever it chose; neither
has a golden's floor, which goes on with the golden's choices.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from parity.compare.rows import StageRows, stage_rows
from parity.golden.store import Dump
from parity.stages import Named

EXPERTS = "target.layers.{l}.experts"


class Flips:
    """For each prompt and position, the first layer whose experts differ from the golden's on any side of the run.

    Attributes:
        layers: by (prompt, position).
        positions: (prompt, position) of every row whose experts can be compared.
    """

    def __init__(self, golden: Dump, run: Dump):
        self.layers: dict[tuple[int, int], int] = {}
        self.positions: set[tuple[int, int]] = set()
        sides = [side for side in run.sides if EXPERTS not in side.manifest.case.forced]
        for named in golden.declared.values():
            if named.stage.template == EXPERTS:
                for side in sides:
                    self._find(stage_rows(golden, side, named))

    def _find(self, rows: StageRows | None) -> None:
        if rows is None:
            return
        places = list(zip(rows.prompt.tolist(), rows.position.tolist(), strict=True))
        self.positions.update(places)
        for row in np.flatnonzero(differing(rows)):
            self.layers.setdefault(places[row], rows.named.layer)

    @property
    def prompts(self) -> list[int]:
        """The prompts that have such rows."""
        return sorted({prompt for prompt, _ in self.layers})

    def reach(self, names: Iterable[Named]) -> bool:
        """Whether rows of any of these stages lie behind a flip."""
        first = min(self.layers.values(), default=np.inf)
        return any(first < _reach(named) for named in names)

    def apart(self, rows: StageRows) -> np.ndarray:
        """Which of these rows [R] lie behind a flip."""
        reach = _reach(rows.named)
        places = zip(rows.prompt.tolist(), rows.position.tolist(), strict=True)
        return np.array([self.layers.get(place, np.inf) < reach for place in places], dtype=bool)


def differing(rows: StageRows) -> np.ndarray:
    """Which rows [R] of a stage of experts hold another set of them; their order carries no meaning."""
    return (np.sort(rows.golden, axis=1) != np.sort(rows.device, axis=1)).any(axis=1)


def _reach(named: Named) -> float:
    """A flip at a layer below this one reaches the stage; its own layer's counts from ffn_out on."""
    if named.name == "target.embed":
        return 0
    if named.layer is None or "drafter" in named.name:
        return np.inf
    return named.layer + (named.stage.part in ("ffn_out", "out"))
