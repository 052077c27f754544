"""What a run is compared with: the golden, or the golden with the run's own experts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING, Protocol

import numpy as np

from parity.compare.flips import EXPERTS, Flips, differing, hidden_layers
from parity.compare.rebased import ForcedGolden, RebasedGolden, SettledRun
from parity.compare.report import OwnExperts
from parity.compare.rows import FLOOR, StageRows, stage_rows
from parity.errors import Inconclusive, ParityError
from parity.golden.views import DumpView, TrustedGolden

if TYPE_CHECKING:
    from parity.compare.tipped import Moved


class Rerun(Protocol):
    """Runs the reference over some prompts of a golden once more, as a run was forced and with the run's experts."""

    def __call__(
        self, golden: TrustedGolden, run: DumpView, prompts: Sequence[int], floor: bool = True, roundings: int = 1
    ) -> DumpView:
        """A dump with the float32 truth and, if asked for, the floor of the run's mode, under the golden's prompt
        numbers; `roundings` bfloat16 runs are behind that at the least.

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

    `lack` is why no number is judged at all; '' where some are. `seen` is the run with the experts that it does not
    show, as far as they are inferred: the reference runs again with these. `moved` is how far close choices of experts
    that nobody knows move the target's scores.
    """

    golden: TrustedGolden
    seen: DumpView
    flips: Flips | None = None
    own: OwnExperts | None = None
    lack: str = ""
    moved: Moved = field(default_factory=dict)

    def undecided(self, rows: StageRows, scores: StageRows | None) -> np.ndarray:
        """Which of these choices [R] lack evidence: no token that whatever experts do not explain."""
        excluded = self.excluded(rows)
        if not excluded.any():
            return excluded
        from parity.compare.tipped import beyond

        return np.asarray(excluded & ~beyond(rows, scores, self.moved))

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
        return Basis(golden, run)
    try:
        segments = _over_segments(golden, run, rerun)
    except ParityError as error:
        return Basis(golden, run, lack=f"what rounding costs between two shown stages is not known ({error})")
    flips, seen, lack, change = _flips(golden, segments, run, rerun)
    if not flips.reach(golden.declared[name] for name in names):
        return Basis(segments, seen)
    counts = len(flips.places), len(flips.positions)
    if lack:
        return Basis(segments, seen, flips, OwnExperts(*counts, lack=lack), moved=change)
    try:
        again = RebasedGolden(segments, _once_more(golden, seen, flips.prompts, rerun), flips.prompts)
    except ParityError as error:
        return Basis(segments, seen, flips, OwnExperts(*counts, lack=str(error)))
    differing, choices, explained = _counted(again, seen)
    return Basis(again, seen, None, OwnExperts(*counts, differing, choices, explained))


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
    _, seen, lack, _ = _flips(golden, segments, run, rerun)
    if lack:
        raise Inconclusive(lack)
    prompts = Flips(segments, seen).prompts
    again = RebasedGolden(segments, _once_more(golden, seen, prompts, rerun), prompts) if prompts else segments
    settled = SettledRun(seen, (EXPERTS,))
    return ForcedGolden(again, settled), settled


def _over_segments(golden: TrustedGolden, run: DumpView, rerun: Rerun | None) -> TrustedGolden:
    """The golden with its floor over the segments between the stages at which a local run was forced.

    Plain relative errors of a float32 run need no floor.
    """
    case = run.manifest.case
    if case.mode != "local" or case.precision == "float32":
        return golden
    numbers = (named for named in run.declared.values() if not named.stage.exact or named.stage.template == EXPERTS)
    if {named.name for named in numbers} <= frozenset.intersection(*(side.forced for side in run.sides)):
        return golden
    prompts = range(len(case.prompts))
    return RebasedGolden(golden, _once_more(golden, run, prompts, rerun), prompts)


def _flips(
    golden: TrustedGolden, truth: TrustedGolden, run: DumpView, rerun: Rerun | None
) -> tuple[Flips, DumpView, str, Moved]:
    """Where a run's experts differ, shown or inferred; the run with them; why they are not known, if so; and how far
    those move its scores."""
    if not hidden_layers(truth, run):
        return Flips(truth, run), run, "", {}

    def again(seen: DumpView, prompts: Sequence[int]) -> DumpView:
        return _once_more(golden, seen, prompts, rerun, floor=False)

    from parity.compare.hidden_experts import HiddenExperts
    from parity.compare.tipped import moved

    hidden = HiddenExperts(truth, run, again)
    try:
        seen = hidden.infer() or run
        if hidden.unresolved:
            flips = Flips(truth, hidden.assuming(hidden.unresolved))
            untold = "too little is shown to infer them: float32, or showing target.layers.*.experts, settles it"
            return flips, run, untold, moved(hidden, flips.prompts)
    except ParityError as error:
        return Flips(truth, hidden.assuming(hidden.tried)), run, str(error), {}
    return Flips(truth, seen), seen, "", {}


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
