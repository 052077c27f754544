"""Where the experts of a run are not the golden's, and which rows lie behind such a place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from parity.compare.rows import StageRows, same_rows, stage_rows
from parity.golden.views import DumpView, TrustedGolden
from parity.stages import Named

EXPERTS = "target.layers.{l}.experts"


class Flips:
    """Where experts differ from the golden's on any side of a run, and which rows lie behind: below in the layers, or
    further on in the prompt, through attention.

    Attributes:
        places: (prompt, position) of rows whose experts differ in any layer.
        positions: (prompt, position) of every row whose experts can be compared.
    """

    def __init__(self, golden: TrustedGolden, run: DumpView):
        self.places: set[tuple[int, int]] = set()
        self.positions: set[tuple[int, int]] = set()
        layers, prompts = golden.manifest.model.num_layers, len(golden.manifest.case.prompts)
        self.first: np.ndarray = np.full((prompts, layers + 1), np.inf)  # first position that a flip reaches
        for named in golden.declared.values():
            if named.stage.template == EXPERTS:
                for side in run.sides:
                    if named.name not in side.forced:
                        self._add(stage_rows(golden, side, named))
        self.first = np.minimum.accumulate(self.first, axis=1)

    def _add(self, rows: StageRows | None) -> None:
        if rows is None or rows.named.layer is None:
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

    def reached(self, rows: StageRows) -> np.ndarray:
        """Which of these rows [R] lie behind a flip."""
        return np.asarray(rows.position >= self.first[rows.prompt, self._reach(rows.named)])

    def _reach(self, named: Named) -> int:
        """A flip at a layer below this one reaches the stage; its own layer's counts from ffn_out on."""
        if named.name == "target.embed":
            return 0
        if named.layer is None or "drafter" in named.name:
            return int(self.first.shape[1]) - 1
        return named.layer + int(named.stage.part in ("ffn_out", "out"))


def _places(rows: StageRows, which: np.ndarray | slice) -> Iterator[tuple[int, int]]:
    return zip(rows.prompt[which].tolist(), rows.position[which].tolist(), strict=True)


def differing(rows: StageRows) -> np.ndarray:
    """Which rows [R] of a stage of experts hold another set of them; their order carries no meaning."""
    return ~same_rows(np.sort(rows.golden, axis=1), np.sort(rows.device, axis=1))


def hidden_layers(golden: TrustedGolden, run: DumpView) -> list[int]:
    """Layers of which a run does not declare the experts as shown, so that nothing forced them."""
    names = {layer: EXPERTS.format(l=layer) for layer in range(golden.manifest.model.num_layers)}
    return [
        layer
        for layer, name in names.items()
        if name in golden.manifest.stages and name not in run.manifest.stages and not run.view.shows(name)
    ]
