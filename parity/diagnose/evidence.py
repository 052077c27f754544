"""Where a device goes red: the cheapest run that shows it, and what only all prompts show together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from parity.compare.basis import Rerun
from parity.compare.report import FAIL, Place, Report, StageResult
from parity.compare.structure import Finding
from parity.diagnose.explain import Residual, judged, residuals
from parity.diagnose.ranks import Parted, RankView, parted, told_apart
from parity.diagnose.search import Search, Trial
from parity.diagnose.trials import Assumption, Trials, Weighed, attempt
from parity.drive import RunRequest, run_device
from parity.golden.manifest import Mode
from parity.golden.store import Dump
from parity.golden.views import DumpView, GoldenSlice, JoinedGoldens, JoinedSlices, TrustedGolden
from parity.policy import Policy
from parity.progress import Progress
from parity.seam import Device

MODES: tuple[Mode, ...] = ("local", "chained")

QUICK = 4
"""Rounds of the first look: enough for a rejection, what it leaves in the caches, and the round behind it."""


CLEAR = 2.0
"""A first look at one prompt is enough where a stage is twice beyond its bound. What is nearer to it may be within it by
the floor of all prompts: then the comparison of all of them decides."""


@dataclass(frozen=True)
class Red:
    """A run that fails, the golden it is compared with, and the report that says so; `prompt` is the whole golden's number."""

    golden: TrustedGolden
    run: DumpView
    prompt: int
    report: Report

    @property
    def first(self) -> Place:
        """Where it first fails; a stage that the golden does not know has no layer."""
        return self.report.first or next(_where(one) for one in self.report.findings)

    @property
    def free(self) -> bool:
        """Whether every stage passes on the golden's tokens, and only what the device emits by itself is wrong."""
        return all(one.verdict != FAIL for one in self.report.stages) and {
            one.kind for one in self.report.findings
        } == {"generation"}

    @property
    def number(self) -> int:
        """The prompt's number in `golden`."""
        return 0 if len(self.golden.manifest.case.prompts) == 1 else self.prompt

    def first_in(self, whole: DumpView) -> Place:
        """`first` in the prompt numbers of the whole golden."""
        return self.first if self.golden is whole else replace(self.first, prompt=self.prompt)

    def residuals(self) -> tuple[Residual, ...]:
        """What failed in the comparison, as it judged it: stages, then what belongs to none of them."""
        stages = [one for one in judged(self.golden, self.run, self.report).values() if one.red]
        named = {one.stage for one in stages}
        places = [_where(one) for one in self.report.findings if one.stage not in named]
        return (*stages, *(Residual(place.stage, True, inf, None, inf, place) for place in places))


def _where(found: Finding) -> Place:
    return Place(found.stage, None, found.prompt, found.round)


def failures(report: Report) -> tuple[str, ...]:
    """What a comparison says against a run, in a sentence for stages and one for findings."""
    wanted = FAIL if report.verdict == FAIL else report.verdict
    stages = [one for one in report.stages if one.verdict == wanted]
    own = [one for one in stages if "inherited" not in one.marks] or stages
    said = (
        [f"{len(stages)} of {len(report.stages)} stages: {report.verdict}, {own[0].stage} by {_by(own[0])}"]
        if own
        else []
    )
    said += [str(report.own_experts)] if report.own_experts is not None and report.verdict != FAIL else []
    many = f"{len(report.findings)} findings, the first: " if len(report.findings) > 1 else ""
    return (*said, *(many + one.message for one in report.findings[:1]))


def _by(result: StageResult) -> str:
    """The statistic that is furthest beyond its bound, or why there is none."""
    beyond = {name: result.x[name] / bound for name, (_, bound) in result.bounds.items() if name in result.x}
    if result.choices:
        return f"{result.choices['bug']} of {result.rows} rows"
    if result.note or not beyond:
        return result.note or "no tensor that could be compared"
    worst = max(beyond, key=beyond.__getitem__)
    return f"{worst} {result.x[worst]:.3g} (bound {result.bounds[worst][1]:g})"


@dataclass
class Redrive:
    """Runs a device over another golden of a prompt, in the mode it went red in; as one rank has it, where it is a rank's."""

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


def red_run(
    golden: TrustedGolden, run: DumpView, policy: Policy, rerun: Rerun | None = None
) -> Red | Parted | Report | None:
    """What `parity diff` says of a run that was made already: None where it passes, its report where it is inconclusive.

    Args:
        rerun: as for `parity.compare.compare`: a run that went on with experts of its own is inconclusive without it.
    """
    one, report = told_apart(golden, run, policy, rerun)
    if report.exit_code == 0:
        return None
    if report.verdict != FAIL:
        return report
    red = Red(golden, one, 0, report)
    return parted(one, report) or replace(red, prompt=red.first.prompt)


def red_device(
    golden: TrustedGolden,
    device: Device,
    policy: Policy,
    folder: Path,
    progress: Progress,
    whole: Callable[[Mode], DumpView] | None = None,
) -> Red | Parted | Report | None:
    """Run a device until it fails: the longest prompt briefly, local and chained, then all prompts as `parity diff` does.

    The prompt that fails is run whole: later rounds tell apart what the first ones do not. None where it passes over the
    whole golden in both modes. Ranks that differ within their bounds, and what is inconclusive, are what it is only where
    nothing fails by its values.

    Args:
        whole: makes the run of all prompts in a mode.
    """
    prompts = golden.manifest.case.prompts
    longest = max(range(len(prompts)), key=lambda number: len(prompts[number].ids))
    last = len(prompts[longest].generation.acceptance_length)
    for number, mode in enumerate(MODES):
        progress(number, 4, f"{mode}, {prompts[longest].id}")
        found = _look(golden, device, policy, mode, longest, QUICK, folder / mode)
        if isinstance(found, Red) and any(one.worst > CLEAR for one in found.residuals()):
            again = _look(golden, device, policy, mode, longest, last, folder / "whole") if last > QUICK else found
            return again if isinstance(again, Red) else found
    rest: list[Parted | Report] = []
    for number, mode in enumerate(MODES, 2):
        progress(number, 4, mode)
        run = whole(mode) if whole else Dump(run_device(RunRequest(device, golden, mode, (), folder / f"all-{mode}")))
        found = red_run(golden, run, policy)
        if isinstance(found, Red):
            return found
        rest += [found] if found else []
    return next((one for one in rest if isinstance(one, Parted)), next(iter(rest), None))


def _look(golden: TrustedGolden, device: Device, policy: Policy, mode: Mode, prompt: int, rounds: int, out: Path):
    """The first rounds of one prompt."""
    view = GoldenSlice(golden, prompt, rounds)
    found = red_run(
        view, Dump(run_device(RunRequest(device=device, golden=view, mode=mode, stages=(), out=out))), policy
    )
    return replace(found, prompt=prompt) if isinstance(found, Red) else found


def other_prompts(
    golden: TrustedGolden, prompt: int, run: DumpView | Callable[[TrustedGolden], DumpView]
) -> Iterator[tuple[TrustedGolden, DumpView, int]]:
    """(golden, run, number of the prompt in both) for every prompt but one; `run` is whole, or makes a prompt's run."""
    for number in range(len(golden.manifest.case.prompts)):
        if number == prompt:
            continue
        if isinstance(run, DumpView):
            yield golden, run, number
        else:
            view = GoldenSlice(golden, number, len(golden.manifest.case.prompts[number].generation.acceptance_length))
            yield view, run(view), 0


CONFIRMED = 5
"""The best trials that get a trial over every stage, and over every prompt where one does not show it."""

ELSEWHERE = 3
"""Other prompts that what was named has to explain as well, at the most."""


def together(parts: Sequence[Trials], assumed: Sequence[Assumption]) -> dict[str, Residual]:
    """What assumptions leave at every stage of all these prompts, judged as one comparison."""
    views = [(one.imagined(assumed, one.rounds), one.cut(one.rounds)[1]) for one in parts]
    golden, run = JoinedGoldens([view for view, _ in views]), JoinedSlices([cut for _, cut in views])
    return residuals(golden, run, parts[0].policy)


def faint(
    trials: Trials, hypotheses: Sequence[Any], first: Residual
) -> tuple[Trial | None, list[Trial], dict[str, Residual]]:
    """Explain a stage that fails over all prompts and over none alone.

    Every hypothesis is tried on the prompt where it first shows; the ones that explain most there are judged over all.

    Returns:
        The trial that brings the stage back to its floor, or None; every trial made; what the first leaves.
    """
    made = Search(trials, hypotheses, (), first).alone()
    parts = sorted((trials, *trials.beside()), key=lambda one: one.prompt)
    before = together(parts, ())
    for trial in [one for one in made if one.explained > 0][:CONFIRMED]:
        after = attempt(lambda trial=trial: together(parts, trial.assumed))
        if after and first.stage in after and first.stage in before:
            whole = replace(trial, before=before[first.stage], after=after[first.stage])
            if whole.settles and not any(one.red and not before[name].red for name, one in after.items()):
                return whole, made, after
    return None, made, before


def elsewhere(
    trials: Trials, known: Sequence[Assumption], evidence: Sequence[Residual]
) -> tuple[Trials, Residual] | None:
    """The first other prompt, and its first stage, that what is known does not explain; prompts that fail first."""
    failing = {one.place.prompt for one in evidence if one.place}
    others = sorted(trials.beside(), key=lambda one: one.prompt not in failing)
    for other in others[:ELSEWHERE]:
        found = attempt(
            lambda other=other: Weighed(other.residuals((), other.rounds), other.residuals(known, other.rounds))
        )
        before, after = (found.before, found.after) if found else (other.residuals((), other.rounds),) * 2
        for name, one in after.items():
            if one.red and not (name in before and before[name].red and before[name].settled_by(one)):
                return other, one
    return None
