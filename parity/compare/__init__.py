"""The comparator: a device's run compared with a golden, structure before values, every gate joined by AND.

`compare` asks whether the two may be compared (preconditions.py), then judges stage by stage (stage.py, by_policy.py):
the rows of each (rows.py) over what they are judged against (basis.py: the golden, or the reference run again:
flips.py, hidden_experts.py, rebased.py), as numbers (numbers.py, statistics.py, evidence.py) or choices (choices.py,
scores.py). It says which failure is the first (first_failure.py) and where and whose an error is (places.py,
relations.py, origins.py). Config and generation are compared in constants.py and generation.py; inconclusive.py says
why a run proves nothing; report.py is the result, between.py compares two devices, breakdown.py looks inside a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from parity.compare.basis import Basis, Rerun, basis
from parity.compare.by_policy import two_devices
from parity.compare.constants import check_constants
from parity.compare.evidence import Copies
from parity.compare.exercised import not_exercised, on_forced_inputs, unseen_passes
from parity.compare.first_failure import earliest_failure, held_at
from parity.compare.generation import acceptance, check_generation, unseen_text
from parity.compare.inconclusive import experts_hidden, unbounded, why_inconclusive
from parity.compare.kept import refuse_without, resting_on
from parity.compare.lucky import with_more_roundings
from parity.compare.places import attest, mark, shows_first_in, witnesses
from parity.compare.preconditions import comparable, refuse_unmatched
from parity.compare.report import DISPUTED, FAIL, INCONCLUSIVE, ROUNDED, UNSHOWN_EXPERTS, Report, StageResult, conclude
from parity.compare.stage import judge_stage, row_of
from parity.compare.structure import Finding, check_structure
from parity.golden.views import DumpView, TrustedGolden
from parity.layers import Layers, layers_of, within
from parity.policy import Policy
from parity.reproducing import Argument, quoted
from parity.stages import select


def compare(
    golden: TrustedGolden,
    run: DumpView,
    policy: Policy,
    globs: Sequence[str] = (),
    strict: bool = False,
    rerun: Rerun | None = None,
    without: Sequence[str] = (),
) -> Report:
    """Judge every selected stage of a run.

    Args:
        without: bounds that are left out where the evidence, a sketch or the best logits, says nothing of them.
        rerun: runs the reference once more with the experts of a run that continued with its own; without it such a
            run is inconclusive at best.

    Raises:
        UsageError: the run is not one over this golden, the two share source, or the policy does not fit.
    """
    comparable(golden, run)
    refuse_without(without)
    refuse_unmatched(policy, golden)
    selected = _selected(golden, run, globs)
    judged = _judged(golden, run, policy, selected.names, rerun, without)
    constants, emitted = check_constants(golden, run), check_generation(golden, run)
    findings = [*selected.findings, *judged.findings, *emitted.findings, *constants.findings]
    set_aside = [*emitted.set_aside, *constants.set_aside]
    parted = why_inconclusive(golden, run, selected.names, selected.not_shown, not globs)
    parted += unbounded(golden, judged.results)
    verdicts = [
        *(result.verdict for result in judged.results),
        *(FAIL for _ in findings),
        *(DISPUTED for _ in set_aside),
    ]
    verdicts += [INCONCLUSIVE] if constants.silent or parted else []
    verdicts += [judged.on.own.verdict] if judged.on.own else []
    first = earliest_failure(golden, judged.results, findings)
    case, true, own = run.manifest.case, golden.manifest.case, policy.own
    report = Report(
        device=run.manifest.producer.name,
        precision=case.precision,
        mode=case.mode,
        policy=policy.name,
        golden=str(golden.folder),
        run=str(run.folder),
        beside=str(run.other.folder) if two_devices(run) else "",
        stages=tuple(judged.results),
        findings=tuple(findings),
        acceptance=acceptance(golden, run),
        first=first,
        holds=held_at(golden, run, first),
        verdict=conclude(verdicts),
        reproduce="",
        strict=strict,
        blind="" if own and own.borrowed else policy.blind,
        witnesses=witnesses(golden.manifest),
        own_experts=judged.on.own,
        layers=str(selected.layers or ""),
        outside=selected.outside,
        unasked=len(golden.manifest.stages) - selected.asked,
        unseen=_unseen(golden, run, selected.names, constants.unjudged, set_aside),
        not_shown=selected.not_shown,
        parted=parted,
        lucky=tuple(true.prompts[number].id for number in judged.lucky),
        forced=on_forced_inputs(case.forced, case.mode),
        not_exercised=tuple(not_exercised(golden, case.lanes)),
        sampling=true.sampling,
        rests_on=resting_on(golden, run, judged.results, without) if golden.keeps or run.keeps else (),
        without=tuple(without),
        policy_file=own.file if own else "",
        policy_apart=own.apart if own else "",
        partial=bool(run.asked),
    )
    return replace(report, reproduce=_command(golden, run, globs, report))


@dataclass(frozen=True)
class _Selected:
    """What is asked for of a comparison.

    Attributes:
        names: the stages that are judged; of `not_shown` the ones that both sides do not show, each with why.
        findings: what is wrong with the structure of the run.
        layers: the target's layers that the run is of, where not all; `outside` are the stages that it leaves out.
        asked: how many stages were asked for.
    """

    names: list[str]
    not_shown: dict[str, str]
    findings: list[Finding]
    layers: Layers | None
    outside: int
    asked: int


def _selected(golden: TrustedGolden, run: DumpView, globs: Sequence[str]) -> _Selected:
    alone, asked = layers_of(run), select(globs, golden.manifest.stages)
    names = within(alone, asked, golden.declared)
    findings, outside = _structure(golden, run, names), len(asked) - len(names)
    names = [name for name in names if name in golden.declared]
    shown = [name for name in names if all(side.view.shows(name) for side in run.sides)]
    not_shown = shows_first_in([name for name in names if name not in {*shown}], golden.declared, shown)
    return _Selected(shown, not_shown, findings, alone, outside, len(asked))


@dataclass(frozen=True)
class _Judged:
    """The result of every stage, what was found with them, what they were judged on, and prompts with more floors."""

    results: list[StageResult]
    findings: list[Finding]
    on: Basis
    lucky: tuple[int, ...]


def _judged(
    golden: TrustedGolden,
    run: DumpView,
    policy: Policy,
    names: Sequence[str],
    rerun: Rerun | None,
    without: Sequence[str],
) -> _Judged:
    """Every stage; those that fail once more where a floor of several roundings is to be had."""
    mode = run.manifest.case.mode
    copies, on = Copies(golden, mode), basis(golden, run, names, rerun)
    forced = frozenset.intersection(*(side.forced for side in run.sides))

    def stage(name: str, on: Basis) -> tuple[StageResult, list[Finding]]:
        row = row_of(policy, golden, run, name, forced)
        return judge_stage(golden, run, golden.declared[name], row, on, copies, without)

    staged = {name: stage(name, on) for name in names}
    on, lucky = with_more_roundings(golden, run, [result for result, _ in staged.values()], on, rerun)
    if lucky:
        staged |= {name: stage(name, on) for name, (result, _) in staged.items() if result.verdict == FAIL}
    results = copies.noted_on([result for result, _ in staged.values()])
    results = attest(mark(results, golden, mode), golden)
    return _Judged(results, [finding for _, found in staged.values() for finding in found], on, lucky)


def _unseen(
    golden: TrustedGolden, run: DumpView, names: Sequence[str], unjudged: Sequence[str], set_aside: Sequence[Finding]
) -> tuple[str, ...]:
    """What this comparison cannot see."""
    why = "the references themselves disagree on what it depends on"
    return (
        *([ROUNDED] if run.manifest.case.precision == "bfloat16" else []),
        *([UNSHOWN_EXPERTS] if experts_hidden(golden, run) else []),
        *unseen_passes(run, names),
        *unseen_text(golden, run),
        *(f"config constants: {constant}" for constant in unjudged),
        *(f"{aside.message}: set aside, {why}" for aside in set_aside),
    )


def _command(golden: TrustedGolden, run: DumpView, globs: Sequence[str], report: Report) -> str:
    """The command that compares the two like this: with every option that the verdict depends on."""
    words: list[Argument] = ["--golden", golden.folder, *(word for glob in globs for word in ("--stage", glob))]
    words += ["--without", ",".join(report.without)] if report.without else []
    words += ["--policy", report.policy_asked] if report.policy_asked else []
    words += ["--strict"] if report.strict else []
    return f"parity diff {run.command} {quoted(*words)}"


def _structure(golden: TrustedGolden, run: DumpView, names: Sequence[str]) -> list[Finding]:
    """What is wrong with the run, or with either of the two whose difference it is."""
    findings = []
    for side in run.sides:
        who = f"{side.manifest.producer.name}: " if side is not run else ""
        own = check_structure(golden, side, names)
        findings += [replace(finding, message=who + finding.message) for finding in own]
    return findings
