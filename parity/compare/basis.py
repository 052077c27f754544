"""What a run is compared with: the golden, or the golden with the run's own experts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from parity.compare.report import OwnExperts
from parity.compare.rows import FLOOR, StageRows, same_rows, stage_rows
from parity.errors import Inconclusive, ParityError
from parity.golden.manifest import TensorRow, Variant
from parity.golden.views import DumpView, TensorPlace, TrustedGolden
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
        sides = [side for side in run.sides if EXPERTS not in side.manifest.case.forced]
        for named in golden.declared.values():
            if named.stage.template == EXPERTS:
                for side in sides:
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


Rerun = Callable[[TrustedGolden, DumpView, Sequence[int]], DumpView]
"""`rerun(golden, run, prompts)`: the reference over these prompts of a golden once more, with the run's experts and
otherwise with what the golden forced: a dump with the float32 truth and the floor of the run's mode, under the golden's
prompt numbers. Raises `ParityError` where it cannot be had."""

GRANTED = 1.5
"""Multiple of the floor's error up to which a device passes; flips of the experts grow with the error likewise."""

DEVIATIONS = 3.0
"""Standard deviations of the two counts that chance is granted, taken as Poisson's: both flip at the same close scores,
so they part by less. On the four prompts of docs/calibration.md the floor flips 18 chained and 3 local, the NumPy
device 15 and 4; 51 and 14 are granted."""


@dataclass(frozen=True)
class Basis:
    """What a run is judged against, which rows it says nothing of, and what the report says about that."""

    golden: TrustedGolden
    flips: Flips | None = None
    own: OwnExperts | None = None

    def excluded(self, rows: StageRows) -> np.ndarray:
        """Which of these rows [R] lack evidence."""
        return np.zeros(len(rows.golden), dtype=bool) if self.flips is None else self.flips.reached(rows)


def basis(golden: TrustedGolden, run: DumpView, names: Iterable[str], rerun: Rerun | None = None) -> Basis:
    """What these stages of a run are judged against: the golden, unless the run continued with its own experts."""
    flips = Flips(golden, run)
    if not flips.reach(golden.declared[name] for name in names):
        return Basis(golden)
    counts = len(flips.places), len(flips.positions)
    try:
        again = RebasedGolden(golden, _once_more(golden, run, flips.prompts, rerun), flips.prompts)
    except ParityError as error:
        return Basis(golden, flips, OwnExperts(*counts, lack=str(error)))
    differing, choices, explained = _counted(again, run)
    return Basis(again, None, OwnExperts(*counts, differing, choices, explained))


def _once_more(golden: TrustedGolden, run: DumpView, prompts: Sequence[int], rerun: Rerun | None) -> DumpView:
    if len(run.sides) > 1:
        raise Inconclusive(
            "two runs are compared, of which each would need a reference of its own: compare each with the golden"
        )
    if rerun is None:
        raise Inconclusive("the reference was not run again with them, as `parity diff RUN` does")
    return rerun(golden, run, prompts)


def _counted(again: TrustedGolden, run: DumpView) -> tuple[int, int, float]:
    """Choices of the run that differ from the reference's under the same experts below, all, and how many may."""
    names = [named for named in again.declared.values() if named.stage.template == EXPERTS]
    mine = [rows for named in names if (rows := stage_rows(again, run, named)) is not None]
    floor = FLOOR[run.manifest.case.mode]
    noise = [rows for named in names if (rows := stage_rows(again, again, named, device=floor)) is not None]
    differ, flipped = (sum(int(differing(rows).sum()) for rows in side) for side in (mine, noise))
    explained = GRANTED * flipped + DEVIATIONS * sqrt(GRANTED * (GRANTED + 1) * max(flipped, 1))
    return differ, sum(len(rows.golden) for rows in mine), explained


class RebasedGolden(TrustedGolden):
    """A golden in which the references' re-run takes the place of some prompts; a view, nothing is written."""

    def __init__(self, golden: TrustedGolden, rerun: DumpView, prompts: Iterable[int]):
        self.golden, self.rerun, self.prompts = golden, rerun, frozenset(prompts)
        places = [place for place in golden.rows if place[1] not in self.prompts]
        places += [place for place in rerun.rows if place[1] in self.prompts]
        rows: dict[TensorPlace, TensorRow] = {place: self._side(place[1]).rows[place] for place in places}
        parts = {place: self._side(place[1]).parts[place] for place in places}
        manifest = golden.manifest.model_copy(update={"tensors": tuple(rows.values())})
        super().__init__(golden.folder, manifest, golden.declared, rows, parts)

    def _side(self, prompt: int) -> DumpView:
        return self.rerun if prompt in self.prompts else self.golden

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> np.ndarray | None:
        """The re-run's rows of a tensor, or the golden's."""
        return self._side(prompt).stored(variant, prompt, round_, stage)
