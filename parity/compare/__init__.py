"""The comparator: a device's run compared with a golden, structure before values, every gate joined by AND.

`compare` collects the rows of each stage (rows.py) over what they are judged against (basis.py: the golden, or the
reference run again: flips.py, hidden_experts.py, rebased.py), judges numbers
(numbers.py, statistics.py, evidence.py) and choices (choices.py, scores.py), and says where and whose an error is
(places.py, relations.py, origins.py). Config and generation are compared in constants.py and generation.py; report.py
is the result, between.py compares two devices, breakdown.py looks inside a stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from parity.compare.basis import Basis, Rerun, basis
from parity.compare.choices import NOISE, as_they_are, judge_choices, judge_exact, judge_pair
from parity.compare.constants import check_constants
from parity.compare.evidence import Copies, lack_of_scores
from parity.compare.exercised import not_exercised, on_forced_inputs, unseen_passes
from parity.compare.flips import hidden_layers
from parity.compare.generation import acceptance, check_generation, unseen_text
from parity.compare.hidden_pages import UNTOLD, unseen_pages
from parity.compare.kept import less_than_whole, refuse_without, resting_on, unscored, with_choices, with_rows
from parity.compare.lucky import with_more_roundings
from parity.compare.numbers import judge_numbers
from parity.compare.passes import ChainPasses
from parity.compare.places import attest, mark, segment, shows_first_in, witnesses
from parity.compare.quantised import UNSETTLED, but_for_steps, by_noise, off_grid, unsettled
from parity.compare.records import held
from parity.compare.report import (
    DISPUTED,
    FAIL,
    INCONCLUSIVE,
    PASS,
    ROUNDED,
    UNSHOWN_EXPERTS,
    WARN,
    Place,
    Report,
    StageResult,
    conclude,
    join,
)
from parity.compare.rows import StageRows, order, stage_rows
from parity.compare.scores import contradicting, paired, scores_of, unchecked
from parity.compare.structure import Finding, check_structure, check_values
from parity.errors import UsageError
from parity.golden.synthetic import refuse_synthetic
from parity.golden.trust import refuse_shared
from parity.golden.views import DumpView, TrustedGolden
from parity.layers import layers_of, within
from parity.metrics import measure
from parity.policy import Policy, Row, mode_of
from parity.reproducing import quoted
from parity.stages import Named, declared, select

if TYPE_CHECKING:
    from parity.compare.between import DeviceDifference
    from parity.compare.sampling.judging import Replayed


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
    _fits(policy, golden)
    alone = layers_of(run)
    asked = select(globs, golden.manifest.stages)
    names = within(alone, asked, golden.declared)
    outside = len(asked) - len(names)
    findings = _structure(golden, run, names)
    names = [name for name in names if name in golden.declared]
    shown = [name for name in names if all(side.view.shows(name) for side in run.sides)]
    not_shown = shows_first_in([name for name in names if name not in {*shown}], golden.declared, shown)
    names = shown
    lacking = () if globs else _nothing_computed(golden, names)
    parted = (*_parted(run), *_nothing_in_common(golden, run, names, not_shown), *lacking)
    judged_on = basis(golden, run, names, rerun)
    mode = run.manifest.case.mode
    copies = Copies(golden, mode)
    forced = frozenset.intersection(*(side.forced for side in run.sides))

    def judged(name: str, on: Basis) -> tuple[StageResult, list[Finding]]:
        row = _row(policy, golden, run, name, forced)
        return _stage(golden, run, golden.declared[name], row, on, copies, without)

    staged = {name: judged(name, judged_on) for name in names}
    judged_on, lucky = with_more_roundings(golden, run, [result for result, _ in staged.values()], judged_on, rerun)
    if lucky:
        staged |= {name: judged(name, judged_on) for name, (result, _) in staged.items() if result.verdict == FAIL}
    results = [result for result, _ in staged.values()]
    findings += [finding for _, found in staged.values() for finding in found]
    results = copies.noted_on(results)
    results = attest(mark(results, golden, mode), golden)
    constants = check_constants(golden, run)
    emitted = check_generation(golden, run)
    findings += [*emitted.findings, *constants.findings]
    set_aside = [*emitted.set_aside, *constants.set_aside]
    own = judged_on.own
    keeps = golden.keeps or run.keeps
    why = "the references themselves disagree on what it depends on"
    verdicts = [*(result.verdict for result in results), *(FAIL for _ in findings), *(DISPUTED for _ in set_aside)]
    verdicts += [INCONCLUSIVE] if constants.silent or parted else []
    verdict = conclude([*verdicts, own.verdict] if own else verdicts)
    first = _first(golden, results, findings)
    return Report(
        device=run.manifest.producer.name,
        precision=run.manifest.case.precision,
        mode=mode,
        policy=policy.name,
        golden=str(golden.folder),
        run=str(run.folder),
        beside=str(run.other.folder) if _two_devices(run) else "",
        stages=tuple(results),
        findings=tuple(findings),
        acceptance=acceptance(golden, run),
        first=first,
        holds=_held(golden, run, first),
        verdict=verdict,
        reproduce=f"parity diff {run.command} "
        + quoted("--golden", golden.folder, *(word for glob in globs for word in ("--stage", glob)))
        + (f" --without {','.join(without)}" if without else ""),
        strict=strict,
        blind=policy.blind,
        witnesses=witnesses(golden.manifest),
        own_experts=own,
        layers=str(alone or ""),
        outside=outside,
        unasked=len(golden.manifest.stages) - len(asked),
        unseen=(
            *([ROUNDED] if run.manifest.case.precision == "bfloat16" else []),
            *([UNSHOWN_EXPERTS] if _experts_hidden(golden, run) else []),
            *unseen_passes(run, names),
            *unseen_text(golden, run),
            *(f"config constants: {why}" for why in constants.unjudged),
            *(f"{aside.message}: set aside, {why}" for aside in set_aside),
        ),
        not_shown=not_shown,
        parted=parted,
        lucky=tuple(golden.manifest.case.prompts[number].id for number in lucky),
        forced=on_forced_inputs(run.manifest.case.forced, mode),
        not_exercised=tuple(not_exercised(golden, run.manifest.case.lanes)),
        sampling=golden.manifest.case.sampling,
        rests_on=resting_on(golden, run, results, without) if keeps else (),
        without=tuple(without),
    )


def _row(policy: Policy, golden: TrustedGolden, run: DumpView, name: str, forced: frozenset[str]) -> Row:
    """What a stage is judged by: behind quantised caches a local one that hides some of its inputs as a chained one."""
    case = golden.manifest.case
    hidden = bool(case.kv_cache) and len(segment(name, golden.declared, forced)) > 1
    return policy.row(name, mode_of(run.manifest.case.mode, case.kv_cache, hidden))


def _nothing_in_common(
    golden: TrustedGolden, run: DumpView, names: Sequence[str], not_shown: Mapping[str, str]
) -> tuple[str, ...]:
    """Why two devices that show nothing but choices of what is asked for are not equivalent; nothing else."""
    if len(run.sides) < 2 or not not_shown or any(not golden.declared[name].stage.exact for name in names):
        return ()
    return ("the two devices show no numbers of the same stage",)


def _nothing_computed(golden: TrustedGolden, names: Sequence[str]) -> tuple[str, ...]:
    """Why lengths and places alone prove nothing of a device; nothing where it shows numbers or choices."""
    stages = [golden.declared[name].stage for name in names]
    if not stages or any(stage.forced or not stage.exact for stage in stages):
        return ()
    return (
        f"the run shows nothing that the models compute: {', '.join(names[:MOST_NAMES])} alone prove nothing of them",
    )


MOST_NAMES = 4
"""Stages that a sentence lists."""


def _experts_hidden(golden: TrustedGolden, run: DumpView) -> bool:
    """Whether a bfloat16 run chooses experts that it does not show."""
    hidden = run.manifest.case.precision == "bfloat16" and not run.settled
    return hidden and any(hidden_layers(golden, side) for side in run.sides)


def _parted(run: DumpView) -> tuple[str, ...]:
    """One sentence for each prompt that a run did not take to its end."""
    cases = ((side, prompt) for side in run.sides for prompt in side.manifest.case.prompts)
    return tuple(
        f"prompt {prompt.id}: from {prompt.parted.stage} of round {prompt.parted.round} on "
        f"{side.manifest.producer.name} continues with tokens of its own, which nothing judges"
        for side, prompt in cases
        if prompt.parted
    )


def _structure(golden: TrustedGolden, run: DumpView, names: Sequence[str]) -> list[Finding]:
    """What is wrong with the run, or with either of the two whose difference it is."""
    findings = []
    for side in run.sides:
        who = f"{side.manifest.producer.name}: " if side is not run else ""
        own = check_structure(golden, side, names)
        findings += [replace(finding, message=who + finding.message) for finding in own]
    return findings


def _stage(
    golden: TrustedGolden,
    run: DumpView,
    named: Named,
    row: Row,
    on: Basis,
    copies: Copies,
    without: Sequence[str],
) -> tuple[StageResult, list[Finding]]:
    """One stage over all prompts; inconclusive where no tensor could be compared, or rows lack evidence."""
    keeps = not named.stage.exact and (golden.keeps or run.keeps)
    less = less_than_whole(golden, run, named, row, on, without) if keeps else None
    if less is not None:
        return _apart(less[0], on), less[1]
    rows = stage_rows(on.golden, run, named)
    if rows is None or not len(rows.golden):
        empty = StageResult(named.name, named.stage.template, named.layer, row.judge, INCONCLUSIVE, row.reason, rows=0)
        return empty, []
    if not named.stage.exact:
        copies.look(rows, row)
    result, findings = _judged(golden, run, rows, row, on, without)
    findings = [*findings, *off_grid(golden, run, rows)]
    if result.verdict == FAIL and unsettled(golden, run):
        noise = by_noise(named.name, run.manifest.case.mode)
        noisy = _judged(golden, run, but_for_steps(golden, rows), noise, on, without)[0]
        if noisy.verdict != FAIL:
            result = replace(result, verdict=INCONCLUSIVE, note=f"the device is {UNSETTLED}")
    if result.verdict == FAIL and (unseen := unseen_pages(on.golden, run, rows)).any():
        result = _without(unseen, result, golden, run, rows, row, on, without)
    if scores_of(named.name) in golden.manifest.stages and (count := int(unchecked(golden, run, rows).sum())):
        unknown = f"{count} of {result.rows} rows are not checked against their own scores"
        note = f"{unknown}: adding these up from the ranks may round as much"
        result = replace(result, verdict=join([result.verdict, INCONCLUSIVE]), note=result.note or note)
    if keeps:
        result = with_rows(result, held(on.golden, run, named), without)
    return _apart(result, on), findings


def _apart(result: StageResult, on: Basis) -> StageResult:
    """A result, inconclusive where rows of it lack evidence."""
    if not result.rows_apart or result.verdict not in (PASS, WARN):
        return result
    own = f"{result.rows_apart} of {result.rows} rows ran through experts of the run's own"
    return replace(result, verdict=INCONCLUSIVE, note=on.lack or f"{own}, and nothing says what these make of them")


def _without(
    unseen: np.ndarray,
    result: StageResult,
    golden: TrustedGolden,
    run: DumpView,
    rows: StageRows,
    row: Row,
    on: Basis,
    without: Sequence[str],
) -> StageResult:
    """A stage that fails: whether it does so without the rows [R] whose pages nobody saw.

    A choice against the scores that it was made from is wrong whatever the pages.
    """
    if scores_of(rows.named.name) in golden.declared:
        unseen = unseen & ~contradicting(golden, run, rows)
    if not unseen.all() and _judged(golden, run, rows.take(~unseen), row, on, without)[0].verdict == FAIL:
        return result
    return replace(result, verdict=INCONCLUSIVE, note=f"{int(unseen.sum())} of {result.rows} rows {UNTOLD}, settles it")


def _judged(
    golden: TrustedGolden, run: DumpView, rows: StageRows, row: Row, on: Basis, without: Sequence[str]
) -> tuple[StageResult, list[Finding]]:
    """The rows of one stage by its policy row."""
    named, scored = rows.named, scores_of(rows.named.name)
    choice = scored in golden.declared
    if named.stage.exact and _two_devices(run):
        return _pair(golden, run, rows, row, on), []
    replay = _replayed(golden, run, rows) if choice else None
    if row.judge == "exact" or (scored and not choice):  # a family whose drafts no scores choose
        against = _against(golden, run, rows, replay) if choice else None
        judged = judge_exact(rows, row, against, replay.settled if replay else as_they_are)
        return replay.told(judged, rows) if replay else judged, [] if named.stage.exact else _broken(rows)
    if not named.stage.exact:
        if row.judge not in ("noise", "relative", "none"):
            raise UsageError(f"policy row {row.stages!r} judges {named.name} by {row.judge}; that is for choices")
        return judge_numbers(rows, on.excluded(rows), row)
    if row.judge not in ("experts", "decision"):
        raise UsageError(f"policy row {row.stages!r} judges {named.name} by {row.judge}; that is for numbers")
    scores = _scores(on.golden, run, named)
    count, left = len(rows.golden), 0
    if scores is not None and (golden.keeps or run.keeps):
        there, left = unscored(rows, scores)
        rows = rows if len(there) == count else rows.take(there)
    if scores is not None and len((common := paired(rows, scores))[0].golden) == len(rows.golden):
        scores = common[1]
    against, settled = _against(golden, run, rows, replay), replay.settled if replay else as_they_are
    judged = _explained(judge_choices(rows, scores, row, against, on.undecided(rows, scores), settled), scores)
    judged = with_choices(judged, count, left, _unknown(rows, scores) if scores else 0, without)
    return replay.told(judged, rows) if replay else judged, []


def _replayed(golden: TrustedGolden, run: DumpView, rows: StageRows) -> Replayed | None:
    """A replay of the choices in these rows; None where nothing is drawn."""
    if not golden.manifest.case.draws:
        return None
    from parity.compare.sampling.judging import replayed

    return replayed(golden, run, rows)


def _unknown(rows: StageRows, scores: StageRows) -> int:
    """Rows of which nobody can tell whether the choice is a bug: the golden keeps no score of it."""
    if scores.known is None:
        return 0
    from parity.compare.best_logits import unknown_choices

    return unknown_choices(rows, scores)


def _held(golden: TrustedGolden, run: DumpView, first: Place | None) -> str:
    """What the stage of the first failure holds instead, where whole tensors of one device say."""
    if first is None or golden.keeps or run.keeps or _two_devices(run) or golden.imagined:
        return ""
    from parity.compare.origins import held_instead

    return str(held_instead(golden, run, golden.declared[first.stage]) or "")


def _against(golden: TrustedGolden, run: DumpView, rows: StageRows, replay: Replayed | None) -> np.ndarray:
    """Rows [R] that contradict what they were made from: the best score, or what a random number calls for."""
    against = contradicting(golden, run, rows)
    return against if replay is None else np.where(replay.sampled, replay.wrong, against)


def _two_devices(run: DumpView) -> TypeGuard[DeviceDifference]:
    """Whether a run is the difference of two."""
    return len(run.sides) > 1


def _pair(golden: TrustedGolden, run: DeviceDifference, rows: StageRows, row: Row, on: Basis) -> StageResult:
    """A stage of choices of two devices, each one's own against the other's."""
    if row.judge not in ("experts", "decision", "exact"):
        raise UsageError(f"policy row {row.stages!r} judges {rows.named.name} by {row.judge}; that is for numbers")
    chosen = scores_of(rows.named.name) in golden.declared
    scored = row.judge != "exact" and chosen
    mine, theirs = (stage_rows(golden, side, rows.named) for side in run.alone())
    if mine is None or theirs is None:
        raise ValueError(f"the two devices have rows of {rows.named.name}, but not each its own")
    scores = _scores(golden, run, rows.named) if scored else None
    own = [None if scores is None else _scores(golden, side, rows.named) for side in run.alone()]
    against = contradicting(golden, run, rows) if chosen else None
    return _explained(judge_pair(mine, theirs, scores, own, row, against, on.excluded(rows)), scores)


def _broken(rows: StageRows) -> list[Finding]:
    """What is wrong with numbers of which no difference is allowed, whatever they are."""
    return check_values(rows, *(measure(rows.golden, side, row_axes=1) for side in (rows.device, rows.noise_floor)))


def _explained(result: StageResult, scores: StageRows | None) -> StageResult:
    """A result of choices, inconclusive where noise explains some and would explain any."""
    if scores is None or not result.choices.get(NOISE):
        return result
    missing = lack_of_scores(measure(scores.golden, scores.noise_floor, row_axes=1))
    return replace(result, verdict=join([result.verdict, INCONCLUSIVE]), note=missing.note) if missing else result


def _scores(golden: TrustedGolden, run: DumpView, named: Named) -> StageRows | None:
    """The scores behind a stage of choices: the golden's, and the run's where it recorded them."""
    scores = scores_of(named.name)
    if scores is None or scores not in golden.manifest.stages:
        return None
    if scores in run.manifest.stages:
        return stage_rows(golden, run, golden.declared[scores])
    return stage_rows(golden, golden, golden.declared[scores], device="float32", mode=run.manifest.case.mode)


def comparable(golden: TrustedGolden, run: DumpView) -> None:
    """Same case, same checkpoints, no source in common, and acceptance that is the drafter's."""
    true, seen = golden.manifest, run.manifest
    if seen.kind != "run":
        raise UsageError(f"{run.folder} is a golden; the device's side of a comparison is a run folder")
    asked = [(side.case.k, side.case.max_new_tokens, [one.ids for one in side.case.prompts]) for side in (true, seen)]
    if asked[0] != asked[1]:
        raise UsageError(f"{run.folder} was made over other prompts, K or token budget than {golden.folder}")
    drawn = [(side.case.sampling, [one.uniforms for one in side.case.prompts]) for side in (true, seen)]
    if drawn[0] != drawn[1]:
        raise UsageError(f"{run.folder} was sampled in another way, or by other random numbers, than {golden.folder}")
    if true.case.sampling and len(run.sides) > 1:
        raise UsageError(f"{golden.folder} samples: compare each device with it, two are not compared with each other")
    if seen.case.partial_kv != true.case.partial_kv:
        kept = [side.case.partial_kv or "none" for side in (true, seen)]
        raise UsageError(f"{run.folder} has partial KV {kept[1]}, {golden.folder} has {kept[0]}")
    if seen.case.kv_cache != true.case.kv_cache:
        kept = [side.case.kv_cache or "the dtype of its passes" for side in (true, seen)]
        raise UsageError(f"{run.folder} keeps its caches in {kept[1]}, {golden.folder} in {kept[0]}")
    for part in ("target", "drafter"):
        ours, theirs = getattr(true.model, part), getattr(seen.model, part)
        if (ours.config_digest, ours.weights_digest) != (theirs.config_digest, theirs.weights_digest):
            raise UsageError(f"{run.folder} ran another {part} checkpoint than {golden.folder} was dumped from")
    layers = [(manifest.model.num_layers, manifest.model.num_drafter_layers) for manifest in (true, seen)]
    if layers[0] != layers[1]:
        raise UsageError(
            f"{run.folder} says that the pair has {layers[1]} layers, {golden.folder} that it has {layers[0]}"
        )
    refuse_shared(true.producer, seen.producer)
    if len(run.sides) > 1 and (golden.keeps or any(side.keeps for side in run.sides)):
        raise UsageError("two devices are compared on whole tensors: golden or runs keep less")
    for side in run.sides:
        refuse_synthetic(side.manifest.producer, str(side.folder))


def _fits(policy: Policy, golden: TrustedGolden) -> None:
    """A policy row that matches no stage is a mistake, not a comment; one of another family of drafters is none."""
    model = golden.manifest.model
    known = (*_any_stages(model.num_layers, max(model.num_drafter_layers, 1)), *golden.declared)
    if (stages := policy.unmatched(known)) is not None:
        raise UsageError(f"policy {policy.name}: row {stages!r} matches no stage")
    if dead := policy.dead(golden.declared):
        raise UsageError(f"policy {policy.name}: {dead}")


@lru_cache
def _any_stages(num_layers: int, num_drafter_layers: int) -> tuple[str, ...]:
    """The stages of a pair with the most that a drafter on taps can have."""
    return tuple(declared(num_layers, num_drafter_layers, pages=True, quantised=True))


def _first(golden: TrustedGolden, results: Sequence[StageResult], findings: Sequence[Finding]) -> Place | None:
    """The earliest failure: by round, then along the dataflow, then by prompt.

    What a free run emits has no place among the rounds: it is named only where nothing else failed.
    """
    places = [result.first for result in results if result.verdict == FAIL and result.first is not None]
    known = [finding for finding in findings if finding.stage in golden.declared]
    places += [_place(golden, finding) for finding in known if finding.kind != "generation"]
    rank, passes = order(golden), ChainPasses.of(golden)
    return min(
        places or [_place(golden, finding) for finding in known],
        key=lambda place: (
            *(place.round, passes.number(place), rank.get((place.round > 0, place.stage), 0)),
            place.prompt,
        ),
        default=None,
    )


def _place(golden: TrustedGolden, finding: Finding) -> Place:
    return Place(finding.stage, golden.declared[finding.stage].layer, finding.prompt, finding.round)
