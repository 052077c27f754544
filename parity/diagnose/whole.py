"""A diagnosis from end to end: the run that goes red, what it is made of, and what gates say where no stage is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from parity.builders import gate_context
from parity.compare.report import Report
from parity.diagnose import Diagnosis, diagnose, inconclusive, renumbered, undecided
from parity.diagnose.causes import parts_of
from parity.diagnose.clock import SearchClock, now
from parity.diagnose.company import BEHIND, BESIDE, company_cause
from parity.diagnose.failing_run import (
    MODES,
    FailingRun,
    RerunOnGolden,
    failing_run,
    failures,
    find_failing_run,
    other_prompts,
)
from parity.diagnose.gates import (
    BEFORE_STAGES,
    GateCause,
    gate_causes,
    gates_not_asked,
    missing_evidence,
    run_until_failure,
)
from parity.diagnose.hidden_layers import hidden_layers
from parity.diagnose.hypothesis import CheckableHypothesis
from parity.diagnose.ranks import RankMismatch, RankView, rank_causes
from parity.diagnose.trials import PromptTrials
from parity.errors import NotOffered
from parity.gates.context import GateContext
from parity.gates.gate import GateReport
from parity.golden.fields import Mode
from parity.golden.trust import refuse_less
from parity.golden.views import DumpView, TrustedGolden
from parity.isolation import ProcessLimits
from parity.oracles import ReferenceRerun
from parity.policy import Policy, read_policy
from parity.producers import counterfactuals
from parity.progress import Progress, quiet
from parity.rounds import generate
from parity.seam import Batched

RUNS = 0.25
"""Share of the limit that the device's own runs and the first references may take: a slow device leaves the search the
rest all the same."""

GATES = 0.5
"""Share of the limit for gates where every stage passes and only what the device emits freely is wrong: what they find
is told in place of a hypothesis."""

BEHIND_LIMIT = 20.0
"""Seconds for what is wrong behind another sequence: that it depends on it is known already."""

HISTORIES = 60
"""Accept/reject histories that a diagnosis explores where no stage is red."""


@dataclass(frozen=True)
class DiagnosisRequest:
    """What to diagnose: a run, or a device that is run now; see `parity.api.diagnose_device`.

    `folder` is for runs; `limit` seconds are for the search of causes and, up to `RUNS` of them, what goes before it.
    """

    golden: TrustedGolden
    run: DumpView | None
    device: str
    precision: str
    policy: str | None
    threads: int
    folder: Path
    limits: ProcessLimits | None = None
    progress: Progress = quiet
    limit: float | None = None
    begun: float = field(default_factory=now)


def diagnosed(asked: DiagnosisRequest) -> Diagnosis | list[GateCause] | None:
    """The diagnosis; what gates found, or lack, where no stage is red; None where nothing is wrong.

    Of a device of which a part is hidden, float32 is tried first: there no router tie hides what a segment does.
    """
    rerun = ReferenceRerun(asked.progress)
    if asked.run is not None:
        refuse_less(asked.run)
        bounds = read_policy(asked.policy, asked.run.manifest.case.precision)
        return _explained(asked, failing_run(asked.golden, asked.run, bounds, rerun), bounds, rerun)
    context = _context(asked, rerun)
    if asked.precision == "bfloat16" and context.device().describe().shown:
        with suppress(NotOffered):
            finer = replace(asked, precision="float32", policy=None, folder=asked.folder / "float32")
            finer.folder.mkdir()
            found = _driven(finer, _context(finer, rerun), rerun, gates=False)
            if found is not None:
                return found
    return _driven(asked, context, rerun)


def _context(asked: DiagnosisRequest, rerun: ReferenceRerun) -> GateContext:
    """What gates judge of the device."""
    folder = asked.folder / "gates"
    return gate_context(
        asked.golden,
        asked.device,
        asked.precision,
        folder,
        asked.limits,
        histories=HISTORIES,
        progress=asked.progress,
        bounds=asked.policy,
        rerun=rerun,
    )


def _driven(
    asked: DiagnosisRequest, context: GateContext, rerun: ReferenceRerun, gates: bool = True
) -> Diagnosis | list[GateCause] | None:
    """The diagnosis of a device that is run now; without `gates`, of its stages only."""
    bounds = read_policy(asked.policy, asked.precision)
    live = context.device()
    first = BEFORE_STAGES if isinstance(live, Batched) else BEFORE_STAGES[:1]
    whole = _from_the_start(context)
    if found := gate_causes(run_until_failure(context, first)):
        return [_placed(asked, found[0], whole, bounds, rerun), *found[1:]]
    red = find_failing_run(asked.golden, live, bounds, asked.folder, asked.progress, whole, rerun)
    if not gates and not isinstance(red, FailingRun):
        return None
    if isinstance(red, FailingRun):
        cause = company_cause(asked.golden, red, context, bounds, asked.folder)
        if cause is not None:
            return [_named_behind(asked, cause, red, bounds, rerun, context)]
    return _explained(asked, red, bounds, rerun, context)


def _from_the_start(context: GateContext) -> Callable[[Mode], DumpView]:
    """Makes the run of all prompts, as `parity diff` does: before the first one the device has run nothing.

    What it does may depend on which sequence came first, and the longest has come first when this is asked for.
    """

    def run(mode: Mode) -> DumpView:
        if mode == MODES[0]:
            context.renew()
        return context.run(mode)

    return run


def _named_behind(
    asked: DiagnosisRequest,
    cause: GateCause,
    red: FailingRun,
    bounds: Policy,
    rerun: ReferenceRerun,
    context: GateContext,
) -> GateCause:
    """What a sequence depends on, and what is wrong with it there: the hypotheses that explain all of that, or
    the stage that fails first; or its part."""
    limit = BEHIND_LIMIT if asked.limit is None else min(asked.limit, BEHIND_LIMIT)
    if red.free or cause.id != BEHIND.id:
        return cause
    told = _explained(replace(asked, limit=limit, begun=now()), red, bounds, rerun, context)
    if not isinstance(told, Diagnosis):
        return cause
    causes = () if told.untried else told.causes
    if told.unexplained:
        causes = tuple(each for each in causes[:1] if each.whole and each.stage == red.first.stage)
    named, of = [each.says for each in causes], tuple(each.hypothesis for each in causes)
    parts = [str(part) for stage, part in told.components if stage == red.first.stage and part.whole]
    parts = parts[:1] if cause.says == BEHIND.says else []  # a row of the other sequence says more
    said = " and ".join(named or parts)
    said += f"; {told.unexplained.stage} stays unexplained" if named and told.unexplained else ""
    return replace(cause, says=f"{BEHIND.says}: {said}", of=of) if said else cause


def _placed(
    asked: DiagnosisRequest, cause: GateCause, whole: Callable[[Mode], DumpView], bounds: Policy, rerun: ReferenceRerun
) -> GateCause:
    """Of a device whose lanes differ, also the stage that fails first over the golden's prompts, what its wrong rows
    have in common, and the part that is wrong there.

    No hypothesis is tried: each is of a sequence alone.
    """
    if cause.gate != BESIDE.gate:
        return cause
    for mode in MODES:
        red = failing_run(asked.golden, whole(mode), bounds, rerun)
        if isinstance(red, FailingRun):
            stage = next((each for each in red.report.stages if each.stage == red.first.stage), None)
            trials, _ = _trials(asked, red, bounds)
            parts = parts_of(trials, trials.rounds, red.first.stage) if stage else ()
            said = [str(part) for part in parts if part.whole][:1] or [stage.relation if stage else ""]
            told = [f"first divergent: {red.first_in(asked.golden)}", *filter(None, said)]
            return replace(cause, headline="; ".join(told))
    return cause


def _explained(
    asked: DiagnosisRequest,
    red: FailingRun | RankMismatch | Report | None,
    bounds: Policy,
    rerun: ReferenceRerun,
    context: GateContext | None = None,
) -> Diagnosis | list[GateCause] | None:
    """What is behind a failing run; a device's gates where no stage is."""
    if isinstance(red, RankMismatch):
        return rank_causes(red)
    if not isinstance(red, FailingRun):
        return _beyond_stages(red, run_until_failure(context) if context else None)
    golden, whole = asked.golden, red.case is asked.golden
    rank = red.run.rank if isinstance(red.run, RankView) else None
    trials, hypotheses = _trials(asked, red, bounds)
    if context is not None:
        case = red.run.manifest.case
        drafts = case.drafts if case.schedule else None
        ids = golden.manifest.case.prompts[red.prompt].ids
        trials.free = partial(generate, context.device(), ids, case.max_new_tokens, drafts)
        trials.drive = RerunOnGolden(context.device(), red.run.manifest.case.mode, asked.folder, rank)
    if trials.drive is None or whole:
        trials.others = partial(other_prompts, red.golden, red.prompt, red.run)
    else:
        trials.others = partial(other_prompts, golden, red.prompt, trials.drive, rerun)
    untried: tuple[str, ...] = ()
    if context and red.free:
        share = SearchClock(None if asked.limit is None else GATES * asked.limit, begun=trials.clock.begun)
        asked_of = run_until_failure(context, check=share.check)
        if read := gate_causes(asked_of):
            return read
        untried = gates_not_asked(asked_of)
    failing = red.residuals()
    trials = trials.with_hidden(hidden_layers(trials, failing))
    diagnosis = diagnose(trials, hypotheses, red.first, failing)
    diagnosis = replace(diagnosis, evidence=failures(red.report), untried=(*diagnosis.untried, *untried))
    return diagnosis if whole else renumbered(diagnosis, red.prompt)


def _trials(
    asked: DiagnosisRequest, red: FailingRun, bounds: Policy
) -> tuple[PromptTrials, Sequence[CheckableHypothesis]]:
    """What tries hypotheses on the prompt that fails, and all of these."""
    reference, hypotheses = counterfactuals(asked.golden, asked.threads)
    begun = max(asked.begun, now() - RUNS * (asked.limit or 0.0))
    counted = SearchClock(asked.limit, asked.progress, begun=begun)
    return PromptTrials(red.golden, red.run, red.number, bounds, reference, clock=counted), hypotheses


def _beyond_stages(report: Report | None, gates: GateReport | None) -> Diagnosis | list[GateCause] | None:
    """What gates found; else what is missing in the comparison, where it was inconclusive, and in the gates."""
    if gates and (found := gate_causes(gates)):
        return found
    lack = missing_evidence(gates) if gates else []
    if report:
        told = inconclusive(report)
        return replace(told, evidence=(*told.evidence, *lack))
    return undecided("local and chained", gates.verdict, lack) if gates and lack else None
