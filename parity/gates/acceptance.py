"""Acceptance of the device against the reference's on the same prompts: counted anew, paired, with an interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from parity.compare.preconditions import comparable
from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS
from parity.errors import Inconclusive
from parity.gates.acceptance_counts import AcceptanceCounts, ForcedRounds, contradictions, counts_match, forced_rounds
from parity.gates.acceptance_interval import Interval, TokenSums, interval_verdict, paired_bootstrap
from parity.gates.context import GateContext
from parity.gates.gate import Check
from parity.gates.made_up import ONE_PIECE, cuts, try_accept_rule
from parity.golden.case import Generation
from parity.seam import Looping
from parity.stages import ACCEPT_LENGTH

FREE, FORCED = "acceptance length, free", "acceptance length, teacher-forced"
COUNTS, CUTS = "counts add up", "cuts by EOS and budget"


def checks(context: GateContext) -> Iterator[Check]:
    """Counts, the free run's acceptance with its rates per position, and the teacher-forced companion."""
    run, case = context.run("chained"), context.golden.manifest.case
    comparable(context.golden, run)
    device = [prompt.generation for prompt in run.manifest.case.prompts if prompt.generation is not None]
    reference = [prompt.generation for prompt in case.prompts if prompt.generation is not None]
    if len(device) < len(run.manifest.case.prompts) or len(reference) < len(case.prompts):
        yield Check(COUNTS, INCONCLUSIVE, "the run holds no free generation of every prompt")
    else:
        added = add_up(context, device, reference)
        yield added
        yield from free(context, device, reference, credible=added.verdict == PASS)
    yield teacher_forced(context)
    yield emits_what_counts(context)


def add_up(context: GateContext, device: Sequence[Generation], reference: Sequence[Generation]) -> Check:
    """Lengths, drafts and emitted tokens of every prompt agree, and AL = 1 + the rates per position."""
    case = context.golden.manifest.case
    ends = {generation.emitted[-1] for generation in (*device, *reference) if generation.finish == "eos"}
    wrong = [
        f"{side} {prompt.id}: {contradiction}"
        for side, generations in (("device", device), ("reference", reference))
        for prompt, generation in zip(case.prompts, generations, strict=True)
        for contradiction in contradictions(generation, case.ks, case.max_new_tokens, ends if side == "device" else ())
    ]
    wrong += _recount(context) + _shown(context)
    device_counts, reference_counts = AcceptanceCounts.of(device, case.ks), AcceptanceCounts.of(reference, case.ks)
    line = f"device {device_counts.identity()}; reference {reference_counts.identity()}"
    good = not wrong and device_counts.adds_up and reference_counts.adds_up
    figures = {"device": device_counts.figures(), "reference": reference_counts.figures(), "contradictions": wrong}
    line += f"; {len(wrong)} contradictions, first {wrong[0]}" if wrong else ""
    return Check(COUNTS, PASS if good else FAIL, line, figures)


def free(
    context: GateContext, device: Sequence[Generation], reference: Sequence[Generation], credible: bool
) -> Iterator[Check]:
    """The free run: the interval of the acceptance length, and the rates behind it."""
    ks = context.golden.manifest.case.ks
    device_counts, reference_counts = AcceptanceCounts.of(device, ks), AcceptanceCounts.of(reference, ks)
    interval = paired_bootstrap(_sums(device), _sums(reference), context.seed)
    line = f"device {device_counts.acceptance_length:.3f}, reference {reference_counts.acceptance_length:.3f}: "
    line += f"accepted drafts {device_counts.accepted_drafts:.3f}, {reference_counts.accepted_drafts:.3f}; "
    line += (
        f"rounds of two tokens or more {device_counts.two_or_more_share:.0%}, {reference_counts.two_or_more_share:.0%}"
    )
    check = _bounded(context, FREE, interval, line, min(device_counts.rounds, reference_counts.rounds), len(device))
    yield check if credible else Check(FREE, INCONCLUSIVE, f"the counts do not add up; {check.evidence}", check.figures)
    both = zip(device_counts.conditional, reference_counts.conditional, strict=True)
    rates = ", ".join(f"{place}: {own:.3f} / {other:.3f}" for place, (own, other) in enumerate(both, 1))
    figures = {"device": device_counts.figures()["conditional"], "reference": reference_counts.figures()["conditional"]}
    yield Check(
        "conditional rates", NOT_JUDGED, f"draft i of rounds that accepted i - 1, device / reference: {rates}", figures
    )


def teacher_forced(context: GateContext) -> Check:
    """Drafts made in the golden's states, against the golden's text and logits."""
    try:
        device_counts, reference_counts = _all_forced(context)
    except Inconclusive as error:
        return Check(FORCED, INCONCLUSIVE, str(error))
    greedy, expected = (
        paired_bootstrap(_forced_sums(device_counts, part), _forced_sums(reference_counts, part), context.seed)
        for part in ("greedy", "expected")
    )
    rounds = sum(len(forced.greedy) for forced in device_counts)
    lengths = [
        sum(forced.greedy.sum() for forced in side) / max(rounds, 1) for side in (device_counts, reference_counts)
    ]
    weighed = [
        sum(forced.expected.sum() for forced in side) / max(rounds, 1) for side in (device_counts, reference_counts)
    ]
    line = f"device {lengths[0]:.3f}, reference {lengths[1]:.3f}"
    check = _bounded(context, FORCED, greedy, line, rounds, len(device_counts))
    more = f"{check.evidence}; expected by the golden's logits {weighed[0]:.3f}, {weighed[1]:.3f}: {expected}"
    figures = check.figures | {"expected": {"device": weighed[0], "reference": weighed[1], **_figures(expected)}}
    return Check(FORCED, check.verdict, more, figures)


def emits_what_counts(context: GateContext) -> Check:
    """An accepted run that EOS or the budget cuts emits what is before the cut, and that alone."""
    golden, device = context.golden.manifest.case, context.device()
    ids, eos = golden.prompts[0].ids, device.describe().eos
    if isinstance(device, Looping):
        return Check(CUTS, NOT_JUDGED, ONE_PIECE)
    try:
        tried = try_accept_rule(device, ids, cuts(ids, golden.k, eos))
    except Inconclusive as error:
        return Check(CUTS, INCONCLUSIVE, f"not checked: {error}")
    figures = {"rounds": tried.rounds, "wrong": list(tried.wrong)}
    if tried.wrong:
        return Check(
            CUTS, FAIL, f"{len(tried.wrong)} of {tried.rounds} rounds emit other tokens; {tried.wrong[0]}", figures
        )
    if not eos:
        return Check(CUTS, INCONCLUSIVE, "the device names no end token: only cuts by the budget were checked", figures)
    return Check(
        CUTS, PASS, f"{tried.rounds} made-up rounds, every budget to K+1, an end token in every place", figures
    )


def _bounded(context: GateContext, name: str, interval: Interval, line: str, rounds: int, prompts: int) -> Check:
    judged, why = interval_verdict(interval, context.bound, rounds, prompts)
    line += f"; {interval}; {rounds} rounds, {prompts} prompts" + (f"; {why}" if why else "")
    return Check(
        name, judged, line, _figures(interval) | {"bound": context.bound, "rounds": rounds, "prompts": prompts}
    )


def _recount(context: GateContext) -> list[str]:
    """The golden's counts against its own drafts and text."""
    try:
        _, reference_counts = _all_forced(context)
    except Inconclusive:
        return []  # the teacher-forced check says so
    pairs = zip(reference_counts, context.golden.manifest.case.prompts, strict=True)
    return [
        f"reference {case.id}: its drafts give other counts" for forced, case in pairs if not counts_match(forced, case)
    ]


def _shown(context: GateContext) -> list[str]:
    """The device's own `accept.length` against its own `accept.emitted`, in every round of the run."""
    run, cases = context.run("chained"), context.golden.manifest.case.prompts
    variant, wrong = run.manifest.case.precision, []
    for _, prompt, round_, _ in [place for place in run.rows if place[3] == ACCEPT_LENGTH]:
        length, emitted = (run.stored(variant, prompt, round_, f"accept.{part}") for part in ("length", "emitted"))
        if length is None:
            raise Inconclusive(f"{run.folder} lists {ACCEPT_LENGTH} in another precision than its own {variant}")
        if emitted is not None and int(length[0]) != len(emitted):
            wrong.append(
                f"device {cases[prompt].id}, round {round_}: shows length {int(length[0])}, emits {len(emitted)}"
            )
    return wrong


def _all_forced(context: GateContext) -> tuple[list[ForcedRounds], list[ForcedRounds]]:
    golden, run = context.golden, context.run("chained")
    prompts = range(len(golden.manifest.case.prompts))
    device_counts = [forced_rounds(golden, run, run.manifest.case.precision, number) for number in prompts]
    return device_counts, [forced_rounds(golden, golden, "float32", number) for number in prompts]


def _sums(generations: Sequence[Generation]) -> TokenSums:
    return TokenSums(
        np.array([len(generation.emitted) - 1 for generation in generations], np.float64),
        np.array([len(generation.acceptance_length) for generation in generations], np.float64),
    )


def _forced_sums(rounds: Sequence[ForcedRounds], part: str) -> TokenSums:
    return TokenSums(
        np.array([getattr(forced, part).sum() for forced in rounds], np.float64),
        np.array([len(forced.greedy) for forced in rounds], np.float64),
    )


def _figures(interval: Interval) -> dict[str, float]:
    return {"relative": interval.estimate, "low": interval.low, "high": interval.high}
