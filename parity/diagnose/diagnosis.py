"""From a failing comparison to its causes: counterfactual references, one cause after another as they show."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from math import inf

from parity.compare.report import FAIL, Place, Report
from parity.diagnose.acceptance_cost import AcceptanceCost, acceptance_cost
from parity.diagnose.cause import Cause, causes_of, said_of
from parity.diagnose.causes import CLEARLY, CauseSearch, parts_of
from parity.diagnose.clock import READING, TimeIsUp
from parity.diagnose.components import Component
from parity.diagnose.deduced import HiddenLayers
from parity.diagnose.failing_run import failures
from parity.diagnose.hypothesis import Assumption, CheckableHypothesis
from parity.diagnose.part_conditions import PartConditions
from parity.diagnose.ranking import Trial, ranked_trials
from parity.diagnose.residuals import Residual
from parity.diagnose.signature import UNLOADED, signature
from parity.diagnose.step import explain_over_all_prompts, first_unexplained
from parity.diagnose.trials import PromptTrials


@dataclass(frozen=True)
class Diagnosis:
    """Causes in the order in which they show; `unexplained` is the first stage that still fails, with its signature.

    `verdict` is the comparison's, `evidence` what failed in it, in sentences. `nearest` are the best hypotheses for
    what is unexplained, with the share that each explains; `components` the part of the computation in which the error
    of a stage that no hypothesis explains lies, by stage. `untried` says what a time limit left out; it is empty where
    the search came to its end. `acceptance` is what the failing stages of the prompt cost. `hidden` are layers that the
    run does not show and that were led back from one that it shows.
    """

    mode: str
    prompt: int
    first: Place | None
    causes: tuple[Cause, ...] = ()
    unexplained: Residual | None = None
    nearest: tuple[tuple[str, float], ...] = ()
    signature: tuple[str, ...] = ()
    components: tuple[tuple[str, Component], ...] = ()
    trials: int = 0
    verdict: str = FAIL
    evidence: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    acceptance: AcceptanceCost | None = None
    hidden: HiddenLayers | None = None

    @property
    def beside_causes(self) -> str:
        """What is told where no hypothesis is named: the parts in which the errors lie, or what the error resembles."""
        parts = "; ".join(f"{stage}: {part.named}" for stage, part in self.components if part.whole)
        unloaded = next((says for says in self.signature if says.startswith(UNLOADED)), "")
        at = f": {self.unexplained.stage} is {unloaded}" if self.unexplained and unloaded else ""
        return parts or f"no hypothesis fits{at}"


def diagnose(
    trials: PromptTrials, hypotheses: Sequence[CheckableHypothesis], first: Place, evidence: Sequence[Residual] = ()
) -> Diagnosis:
    """Explain a device's errors on one prompt, over all its rounds, one cause after another.

    Args:
        first: where the run first diverges.
        evidence: what failed in the comparison; what the prompt alone does not show is looked for in all of its
            prompts.
    """
    search = CauseSearch(trials, hypotheses)
    failing = search.run()
    trials = search.trials
    diagnosis = Diagnosis(trials.mode, trials.prompt, first, tuple(search.causes), hidden=trials.hidden)
    if failing:
        shown = error_signature(trials, failing, search.rounds)
        nearest = nearest_hypotheses(search.made)
        diagnosis = replace(diagnosis, unexplained=failing, nearest=nearest, signature=shown)
    parts, conditions = search.components(), PartConditions(trials)
    diagnosis = replace(diagnosis, components=tuple((stage, conditions.told(stage, part)) for stage, part in parts))
    diagnosis, clock = renumbered(diagnosis, trials.prompt), trials.clock
    try:
        if search.causes and not failing and not clock.untried:
            diagnosis = _with_other_prompts(diagnosis, trials, search.known, evidence)
        elif evidence and not search.causes and not failing:
            diagnosis = _over_all_prompts(diagnosis, trials, hypotheses, evidence)
    except TimeIsUp:
        clock.untried.append("what the causes leave on the comparison's other prompts was not looked at")
    cost = _acceptance_cost(trials)
    return replace(diagnosis, trials=trials.count, untried=tuple(dict.fromkeys(clock.untried)), acceptance=cost)


def _acceptance_cost(trials: PromptTrials) -> AcceptanceCost | None:
    """What the prompt's failing stages cost of acceptance; None where the limit leaves no time for it."""
    with suppress(TimeIsUp), trials.clock.until(READING):
        trials.clock.check()
        failing = [residual.stage for residual in trials.residuals((), trials.rounds).values() if residual.red]
        every = chain([trials], trials.other_prompts())
        return acceptance_cost(failing, ((each.counterfactuals, *each.cut(each.rounds)) for each in every))
    return None


def renumbered(diagnosis: Diagnosis, prompt: int) -> Diagnosis:
    """A diagnosis of a view of one prompt, in the numbers of the golden that the prompt is of."""

    def place(of: Place | None) -> Place | None:
        return of and replace(of, prompt=prompt)

    causes = tuple(replace(cause, place=place(cause.place)) for cause in diagnosis.causes)
    rest = diagnosis.unexplained and replace(diagnosis.unexplained, place=place(diagnosis.unexplained.place))
    return replace(diagnosis, prompt=prompt, first=place(diagnosis.first), causes=causes, unexplained=rest)


def inconclusive(report: Report) -> Diagnosis:
    """Nothing failed, and something that would have shown a failure is missing."""
    return undecided(report.mode, report.verdict, failures(report))


def undecided(mode: str, verdict: str, evidence: Sequence[str]) -> Diagnosis:
    """No failure, and what is missing, in sentences."""
    return Diagnosis(mode, 0, None, verdict=verdict, evidence=tuple(evidence))


def _with_other_prompts(
    diagnosis: Diagnosis, trials: PromptTrials, known: Sequence[Assumption], evidence: Sequence[Residual]
) -> Diagnosis:
    """The same with what the causes of one prompt leave in others."""
    rest = first_unexplained(trials, known, evidence)
    if rest is None:
        return diagnosis
    other, residual = rest
    placed = residual.place and replace(residual.place, prompt=other.prompt)
    return replace(
        diagnosis, unexplained=replace(residual, place=placed), signature=error_signature(other, residual, other.rounds)
    )


def _over_all_prompts(
    diagnosis: Diagnosis, trials: PromptTrials, hypotheses: Sequence[CheckableHypothesis], evidence: Sequence[Residual]
) -> Diagnosis:
    """The same with what the whole comparison shows and no prompt alone: named by all prompts, or said to be
    unexplained."""
    first = evidence[0]
    if first.error == inf or first.stage not in trials.residuals((), trials.rounds):
        return replace(diagnosis, unexplained=first, signature=error_signature(trials, first, trials.rounds))
    trial, made, left = explain_over_all_prompts(trials, hypotheses, first)
    parts = parts_of(trials, trials.rounds, first.stage)
    clear = [part for part in parts if part.whole and (trial is None or trial.explained < CLEARLY * part.explained)]
    diagnosis = replace(diagnosis, components=tuple((first.stage, part) for part in clear))
    if trial is not None and not clear:
        return replace(diagnosis, causes=tuple(causes_of(trial, first, left, made, whole=True)))
    return replace(
        diagnosis,
        unexplained=first,
        nearest=nearest_hypotheses(made),
        signature=error_signature(trials, first, trials.rounds),
    )


def nearest_hypotheses(made: Sequence[Trial]) -> tuple[tuple[str, float], ...]:
    """The three best trials that explain something, with the share that each explains."""
    return tuple((said_of(trial), trial.explained) for trial in ranked_trials(made)[:3] if trial.explained > 0)


def error_signature(trials: PromptTrials, rest: Residual, rounds: int) -> tuple[str, ...]:
    """The signature of what is unexplained on this prompt."""
    golden, run = trials.cut(rounds)
    return tuple(signature(golden, run, rest))
