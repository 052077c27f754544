"""Rows behind experts of a run's own: where it went on with others than the golden's.

Such a row runs through other weights from there on, and says nothing of rounding where it is laid on the golden. It is
judged against the reference run again with the run's experts (`basis`), or, where that cannot be had, set apart: then
nothing is known of it, and nothing passes. A run whose experts were forced has no such rows, whatever it chose; neither
has a golden's floor, which goes on with the golden's choices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from parity.compare.rows import StageRows, stage_rows
from parity.golden.store import Dump
from parity.stages import Named

EXPERTS = "target.layers.{l}.experts"


class Flips:
    """Where experts differ from the golden's on any side of a run, and which rows lie behind: below in the layers, or
    further on in the prompt, through attention.

    Attributes:
        places: (prompt, position) of rows whose experts differ in any layer.
        positions: (prompt, position) of every row whose experts can be compared.
    """

    def __init__(self, golden: Dump, run: Dump):
        self.places: set[tuple[int, int]] = set()
        self.positions: set[tuple[int, int]] = set()
        layers, prompts = golden.manifest.model.num_layers, len(golden.manifest.case.prompts)
        self.first = np.full((prompts, layers + 1), np.inf)  # position behind which a prompt is apart, by reach
        sides = [side for side in run.sides if EXPERTS not in side.manifest.case.forced]
        for named in golden.declared.values():
            if named.stage.template == EXPERTS:
                for side in sides:
                    self._find(stage_rows(golden, side, named))
        self.first = np.minimum.accumulate(self.first, axis=1)

    def _find(self, rows: StageRows | None) -> None:
        if rows is None:
            return
        self.positions.update(_places(rows, slice(None)))
        differ = differing(rows)
        self.places.update(_places(rows, differ))
        np.minimum.at(self.first[:, rows.named.layer + 1], rows.prompt[differ], rows.position[differ])

    @property
    def prompts(self) -> list[int]:
        """The prompts that have such rows."""
        return sorted({prompt for prompt, _ in self.places})

    def reach(self, names: Iterable[Named]) -> bool:
        """Whether rows of any of these stages lie behind a flip."""
        return any(np.isfinite(self.first[:, self._reach(named)]).any() for named in names)

    def apart(self, rows: StageRows) -> np.ndarray:
        """Which of these rows [R] lie behind a flip."""
        return rows.position >= self.first[rows.prompt, self._reach(rows.named)]

    def _reach(self, named: Named) -> int:
        """A flip at a layer below this one reaches the stage; its own layer's counts from ffn_out on."""
        if named.name == "target.embed":
            return 0
        if named.layer is None or "drafter" in named.name:
            return self.first.shape[1] - 1
        return named.layer + (named.stage.part in ("ffn_out", "out"))


def _places(rows: StageRows, which: np.ndarray | slice) -> Iterator[tuple[int, int]]:
    return zip(rows.prompt[which].tolist(), rows.position[which].tolist(), strict=True)


def differing(rows: StageRows) -> np.ndarray:
    """Which rows [R] of a stage of experts hold another set of them; their order carries no meaning."""
    return (np.sort(rows.golden, axis=1) != np.sort(rows.device, axis=1)).any(axis=1)
