"""Where a device fails: the cheapest run that shows it, its report and what failed in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from parity.compare.basis import Rerun, settle
from parity.compare.flips import hidden_layers
from parity.compare.places import multiple
from parity.compare.report import FAIL, Place, Report, StageResult
from parity.compare.structure import Finding
from parity.diagnose.ranks import RankMismatch, RankView, first_failing_rank, rank_mismatch
from parity.diagnose.residuals import Residual, report_residuals
from parity.drive import run_device
from parity.golden.fields import Mode
from parity.golden.store import Dump
from parity.golden.views import DumpView, GoldenSlice, TrustedGolden
from parity.policy import Policy
from parity.progress import Progress
from parity.run_request import RunRequest
from parity.seam import Device

MODES: tuple[Mode, ...] = ("local", "chained")

QUICK = 4
"""Rounds of the first look: enough for a rejection, what it leaves in the caches, and the round behind it."""


CLEAR = 2.0
"""A first look at one prompt is enough where a stage is twice beyond its bound. What is nearer to it may be within it
by the floor of all prompts: then the comparison of all of them decides."""


@dataclass(frozen=True)
class FailingRun:
    """A run that fails, what it is compared with, and the report that says so.

    Args:
        golden: what it is judged against; of a run of which a part is hidden, what `settle` gives.
        run: as it is compared with that.
        prompt: the whole golden's number.
        case: the golden that it was made over.
    """

    golden: TrustedGolden
    run: DumpView
    prompt: int
    report: Report
    case: TrustedGolden

    @property
    def first(self) -> Place:
        """Where it first fails; a stage that the golden does not know has no layer."""
        return self.report.first or next(_where(finding) for finding in self.report.findings)

    @property
    def free(self) -> bool:
        """Whether every stage passes on the golden's tokens, and only what the device emits in a free run is wrong."""
        return all(result.verdict != FAIL for result in self.report.stages) and {
            finding.kind for finding in self.report.findings
        } == {"generation"}

    @property
    def number(self) -> int:
        """The prompt's number in `golden`."""
        return 0 if len(self.golden.manifest.case.prompts) == 1 else self.prompt

    def first_in(self, whole: DumpView) -> Place:
        """`first` in the prompt numbers of the whole golden."""
        return self.first if self.case is whole else replace(self.first, prompt=self.prompt)

    def residuals(self) -> tuple[Residual, ...]:
        """What failed in the comparison, as it judged it: stages, then what belongs to none of them."""
        stages = [
            residual for residual in report_residuals(self.golden, self.run, self.report).values() if residual.red
        ]
        named = {result.stage for result in stages}
        places = [_where(finding) for finding in self.report.findings if finding.stage not in named]
        return (*stages, *(Residual(place.stage, True, inf, None, inf, place) for place in places))


def _where(finding: Finding) -> Place:
    return Place(finding.stage, None, finding.prompt, finding.round)


def failures(report: Report) -> tuple[str, ...]:
    """What a comparison says against a run, in a sentence for stages and one for findings."""
    wanted = FAIL if report.verdict == FAIL else report.verdict
    stages = [result for result in report.stages if result.verdict == wanted]
    own = [result for result in stages if "inherited" not in result.marks] or stages
    said = (
        [f"{len(stages)} of {len(report.stages)} stages: {report.verdict}, {own[0].stage} by {_by(own[0])}"]
        if own
        else []
    )
    said += [str(report.own_experts)] if report.own_experts is not None and report.verdict != FAIL else []
    many = f"{len(report.findings)} findings, the first: " if len(report.findings) > 1 else ""
    return (*said, *(many + finding.message for finding in report.findings[:1]))


def _by(result: StageResult) -> str:
    """The statistic that is furthest beyond its bound, or why there is none."""
    beyond = {name: multiple(result.x[name], bound) for name, (_, bound) in result.bounds.items() if name in result.x}
    if result.choices:
        return f"{result.choices['bug']} of {result.rows} rows"
    if result.note or not beyond:
        return result.note or "no tensor that could be compared"
    worst = max(beyond, key=beyond.__getitem__)
    return f"{worst} {result.x[worst]:.3g} (bound {result.bounds[worst][1]:g})"


def as_compared(golden: TrustedGolden, run: DumpView, rerun: Rerun | None) -> tuple[TrustedGolden, DumpView]:
    """A run and what it is judged against: the golden, unless a part of the run is hidden."""
    hidden = run.manifest.case.shown or hidden_layers(golden, run)
    return settle(golden, run, rerun) if hidden and rerun is not None else (golden, run)


@dataclass
class RerunOnGolden:
    """Runs a device over another golden of a prompt, in the mode it went red in; as one rank has it, where it is a
    rank's."""

    device: Device
    mode: Mode
    folder: Path
    rank: int | None = None
    count: int = 0

    def __call__(self, golden: TrustedGolden) -> DumpView:
        """The run."""
        self.count += 1
        out = self.folder / f"again-{self.count}"
        run = Dump(run_device(RunRequest(self.device, golden, self.mode, (), out)))
        return run if self.rank is None else RankView(run, self.rank)


def failing_run(
    golden: TrustedGolden, run: DumpView, policy: Policy, rerun: Rerun | None = None
) -> FailingRun | RankMismatch | Report | None:
    """What `parity diff` says of a run that was made already: None where it passes, its report where it is
    inconclusive.

    Args:
        rerun: as for `parity.compare.compare`: a run that continued with experts of its own is inconclusive without it.
    """
    view, report = first_failing_rank(golden, run, policy, rerun)
    if report.exit_code == 0:
        return None
    if report.verdict != FAIL:
        return report
    red = FailingRun(*as_compared(golden, view, rerun), 0, report, golden)
    return rank_mismatch(view, report) or replace(red, prompt=red.first.prompt)


def find_failing_run(
    golden: TrustedGolden,
    device: Device,
    policy: Policy,
    folder: Path,
    progress: Progress,
    whole: Callable[[Mode], DumpView] | None = None,
    rerun: Rerun | None = None,
) -> FailingRun | RankMismatch | Report | None:
    """Run a device until it fails: the longest prompt briefly, local and chained, then all prompts as `parity diff`
    does.

    The prompt that fails is run whole: later rounds tell apart what the first ones do not. None where it passes over
    the whole golden in both modes. Ranks that differ within their bounds, and what is inconclusive, are what it is only
    where nothing fails by its values.

    Args:
        whole: makes the run of all prompts in a mode.
        rerun: as for `failing_run`.
    """
    prompts = golden.manifest.case.prompts
    longest = max(range(len(prompts)), key=lambda number: len(prompts[number].ids))
    last = len(prompts[longest].generated.acceptance_length)
    for number, mode in enumerate(MODES):
        progress(number, 4, f"{mode}, {prompts[longest].id}")
        failing = _first_rounds(golden, device, policy, mode, longest, QUICK, folder / mode, rerun)
        if isinstance(failing, FailingRun) and any(residual.worst > CLEAR for residual in failing.residuals()):
            again = (
                _first_rounds(golden, device, policy, mode, longest, last, folder / "whole", rerun)
                if last > QUICK
                else failing
            )
            return again if isinstance(again, FailingRun) else failing
    rest: list[RankMismatch | Report] = []
    for number, mode in enumerate(MODES, 2):
        progress(number, 4, mode)
        run = whole(mode) if whole else Dump(run_device(RunRequest(device, golden, mode, (), folder / f"all-{mode}")))
        failing = failing_run(golden, run, policy, rerun)
        if isinstance(failing, FailingRun):
            return failing
        rest += [failing] if failing else []
    return next((other for other in rest if isinstance(other, RankMismatch)), next(iter(rest), None))


def _first_rounds(
    golden: TrustedGolden,
    device: Device,
    policy: Policy,
    mode: Mode,
    prompt: int,
    rounds: int,
    out: Path,
    rerun: Rerun | None = None,
) -> FailingRun | RankMismatch | Report | None:
    """The first rounds of one prompt."""
    view = GoldenSlice(golden, prompt, rounds)
    run = Dump(run_device(RunRequest(device=device, golden=view, mode=mode, stages=(), out=out)))
    failing = failing_run(view, run, policy, rerun)
    return replace(failing, prompt=prompt) if isinstance(failing, FailingRun) else failing


def other_prompts(
    golden: TrustedGolden,
    prompt: int,
    run: DumpView | Callable[[TrustedGolden], DumpView],
    rerun: Rerun | None = None,
) -> Iterator[tuple[TrustedGolden, DumpView, int]]:
    """(golden, run, number of the prompt in both) for every prompt but one; `run` is whole, or makes a prompt's run."""
    for number in range(len(golden.manifest.case.prompts)):
        if number == prompt:
            continue
        if isinstance(run, DumpView):
            yield golden, run, number
        else:
            view = GoldenSlice(golden, number, len(golden.manifest.case.prompts[number].generated.acceptance_length))
            yield *as_compared(view, run(view), rerun), 0
