"""What a run is compared with: the golden, or the golden with the run's own experts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Protocol

import numpy as np

from parity.compare.hidden_experts import EXPERTS, HiddenExperts, hidden_layers
from parity.compare.report import OwnExperts
from parity.compare.rows import FLOOR, StageRows, same_rows, stage_rows
from parity.errors import Inconclusive, ParityError
from parity.golden.manifest import Shown, TensorRow, Variant
from parity.golden.views import DumpView, TensorPlace, TrustedGolden
from parity.shown import View
from parity.stages import Named


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


class Rerun(Protocol):
    """Runs the reference over some prompts of a golden once more, as a run was forced and with the run's experts."""

    def __call__(self, golden: TrustedGolden, run: DumpView, prompts: Sequence[int], floor: bool = True) -> DumpView:
        """A dump with the float32 truth and, if asked for, the floor of the run's mode, under the golden's prompt
        numbers.

        Raises:
            ParityError: it cannot be had.
        """
        ...


GRANTED = 1.5
"""Multiple of the floor's error up to which a device passes; flips of the experts grow with the error likewise."""

DEVIATIONS = 3.0
"""Standard deviations of the two counts that chance is granted, taken as Poisson's: both flip at the same close scores,
so they part by less. On the four prompts of docs/calibration.md the floor flips 18 chained and 3 local, the NumPy
device 15 and 4; 51 and 14 are granted."""


@dataclass(frozen=True)
class Basis:
    """What a run is judged against, which rows it says nothing of, and what the report says about that.

    `lack` is why no number is judged at all; '' where some are.
    """

    golden: TrustedGolden
    flips: Flips | None = None
    own: OwnExperts | None = None
    lack: str = ""

    def excluded(self, rows: StageRows) -> np.ndarray:
        """Which of these rows [R] lack evidence."""
        if self.lack and not rows.named.stage.exact:
            return np.ones(len(rows.golden), dtype=bool)
        return np.zeros(len(rows.golden), dtype=bool) if self.flips is None else self.flips.reached(rows)


def basis(golden: TrustedGolden, run: DumpView, names: Iterable[str], rerun: Rerun | None = None) -> Basis:
    """What these stages of a run are judged against: the golden, unless the run was forced at fewer stages than its
    floor, or continued with its own experts.

    A local run that shows a part of the stages is judged over the segments between those it was forced at: the floor
    is the reference's over the same segments.
    """
    if run.settled:
        return Basis(golden)
    try:
        segments = _over_segments(golden, run, rerun)
    except ParityError as error:
        return Basis(golden, lack=f"what rounding costs between two shown stages is not known ({error})")
    flips, seen, lack = _flips(golden, segments, run, rerun)
    if not flips.reach(golden.declared[name] for name in names):
        return Basis(segments)
    counts = len(flips.places), len(flips.positions)
    if lack:
        return Basis(segments, flips, OwnExperts(*counts, lack=lack))
    try:
        again = RebasedGolden(segments, _once_more(golden, seen, flips.prompts, rerun), flips.prompts)
    except ParityError as error:
        return Basis(segments, flips, OwnExperts(*counts, lack=str(error)))
    differing, choices, explained = _counted(again, seen)
    return Basis(again, None, OwnExperts(*counts, differing, choices, explained))


class SettledRun(DumpView):
    """A run that is compared with what `settle` gives beside it."""

    settled = True

    def __init__(self, run: DumpView, forced: Sequence[str] = ()):
        self.run = run
        case = run.manifest.case.model_copy(update={"forced": (*run.manifest.case.forced, *forced)})
        view = View(
            (*case.shown, *(Shown(stages=glob.replace("{l}", "*")) for glob in forced)) if case.shown else (),
            run.declared,
        )
        manifest = run.manifest.model_copy(update={"case": case})
        super().__init__(run.folder, manifest, run.declared, run.rows, run.parts)
        self.__dict__["view"] = view

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> np.ndarray | None:
        """The run's rows."""
        return self.run.stored(variant, prompt, round_, stage)


def settle(golden: TrustedGolden, run: DumpView, rerun: Rerun) -> tuple[TrustedGolden, DumpView]:
    """What a run of which a part is hidden is judged against, and the run as it is compared with that.

    Its experts, where they had to be inferred, are as if both had been forced with them, so that a further run of the
    reference under some assumption takes the same ones.

    Raises:
        ParityError: that is not known.
    """
    segments = _over_segments(golden, run, rerun)
    if not hidden_layers(segments, run) or run.manifest.case.precision == "float32":
        return segments, SettledRun(run)
    _, seen, lack = _flips(golden, segments, run, rerun)
    if lack:
        raise Inconclusive(lack)
    prompts = Flips(segments, seen).prompts
    again = RebasedGolden(segments, _once_more(golden, seen, prompts, rerun), prompts) if prompts else segments
    settled = SettledRun(seen, (EXPERTS,))
    return ForcedGolden(again, settled), settled


class ForcedGolden(TrustedGolden):
    """A golden with the experts of a run, which it was made with, in the place of those the reference would choose."""

    def __init__(self, golden: TrustedGolden, run: DumpView):
        self.golden, self.run, self.precision = golden, run, run.manifest.case.precision
        super().__init__(golden.folder, golden.manifest, golden.declared, golden.rows, golden.parts)

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> np.ndarray | None:
        """The run's experts, the golden's tensor of everything else."""
        if variant == "float32" and stage.endswith(".experts"):
            own = self.run.stored(self.precision, prompt, round_, stage)
            return self.golden.stored(variant, prompt, round_, stage) if own is None else own
        return self.golden.stored(variant, prompt, round_, stage)


def _over_segments(golden: TrustedGolden, run: DumpView, rerun: Rerun | None) -> TrustedGolden:
    """The golden with its floor over the segments between the stages at which a local run was forced.

    Plain relative errors of a float32 run need no floor.
    """
    case = run.manifest.case
    if case.mode != "local" or case.precision == "float32":
        return golden
    numbers = (named for named in run.declared.values() if not named.stage.exact or named.stage.template == EXPERTS)
    if all(named.name in side.forced for named in numbers for side in run.sides):
        return golden
    prompts = range(len(case.prompts))
    return RebasedGolden(golden, _once_more(golden, run, prompts, rerun), prompts)


def _flips(
    golden: TrustedGolden, truth: TrustedGolden, run: DumpView, rerun: Rerun | None
) -> tuple[Flips, DumpView, str]:
    """Where a run's experts differ, shown or inferred; the run with them; and why they are not known, if so."""
    if not hidden_layers(truth, run) or len(run.sides) > 1:
        return Flips(truth, run), run, ""

    def again(seen: DumpView, prompts: Sequence[int]) -> DumpView:
        return _once_more(golden, seen, prompts, rerun, floor=False)

    hidden = HiddenExperts(truth, run, again)
    try:
        seen = hidden.infer() or run
    except ParityError as error:
        return Flips(truth, hidden.assuming(hidden.tried)), run, str(error)
    if hidden.unresolved:
        untold = "too little is shown to infer them: float32, or showing target.layers.*.experts, settles it"
        return Flips(truth, hidden.assuming(hidden.unresolved)), run, untold
    return Flips(truth, seen), seen, ""


def _once_more(
    golden: TrustedGolden, run: DumpView, prompts: Sequence[int], rerun: Rerun | None, floor: bool = True
) -> DumpView:
    if len(run.sides) > 1:
        raise Inconclusive(
            "two runs are compared, of which each would need a reference of its own: compare each with the golden"
        )
    if rerun is None:
        raise Inconclusive("the reference was not run again with them, as `parity diff RUN` does")
    return rerun(golden, run, prompts, floor)


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
