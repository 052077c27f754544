"""Acceptance of the device against the reference's on the same prompts: counted anew, paired, with an interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from parity.compare import comparable
from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS
from parity.errors import Inconclusive
from parity.gates.acceptance.counts import Forced, Tally, contradictions, forced, recounted
from parity.gates.acceptance.interval import Interval, Sums, paired, verdict
from parity.gates.context import Bench
from parity.gates.evidence import Check
from parity.gates.rule import cuts, rule
from parity.golden.manifest import Generation

FREE, FORCED = "acceptance length, free", "acceptance length, teacher-forced"
COUNTS, CUTS = "counts add up", "cuts by EOS and budget"


def checks(bench: Bench) -> Iterator[Check]:
    """Counts, the free run's acceptance with its rates per position, and the teacher-forced companion."""
    run, case = bench.run("chained"), bench.golden.manifest.case
    comparable(bench.golden, run)
    device = [prompt.generation for prompt in run.manifest.case.prompts]
    reference = [prompt.generation for prompt in case.prompts]
    if any(one is None for one in (*device, *reference)):
        yield Check(COUNTS, INCONCLUSIVE, "the run holds no free generation of every prompt")
    else:
        added = add_up(bench, device, reference)
        yield added
        yield from free(bench, device, reference, credible=added.verdict == PASS)
    yield teacher_forced(bench)
    yield emits_what_counts(bench)


def add_up(bench: Bench, device: Sequence[Generation], reference: Sequence[Generation]) -> Check:
    """Lengths, drafts and emitted tokens of every prompt agree, and AL = 1 + the rates per position."""
    case = bench.golden.manifest.case
    ends = {one.emitted[-1] for one in (*device, *reference) if one.finish == "eos"}
    wrong = [
        f"{side} {prompt.id}: {found}"
        for side, generations in (("device", device), ("reference", reference))
        for prompt, one in zip(case.prompts, generations, strict=True)
        for found in contradictions(one, case.k, case.max_new_tokens, ends if side == "device" else ())
    ]
    wrong += _recount(bench) + _shown(bench)
    mine, true = Tally.of(device, case.k), Tally.of(reference, case.k)
    line = f"device {mine.identity()}; reference {true.identity()}"
    good = not wrong and mine.adds_up and true.adds_up
    figures = {"device": mine.figures(), "reference": true.figures(), "contradictions": wrong}
    line += f"; {len(wrong)} contradictions, first {wrong[0]}" if wrong else ""
    return Check(COUNTS, PASS if good else FAIL, line, figures)


def free(
    bench: Bench, device: Sequence[Generation], reference: Sequence[Generation], credible: bool
) -> Iterator[Check]:
    """The free run: the interval of the acceptance length, and the rates behind it."""
    k = bench.golden.manifest.case.k
    mine, true = Tally.of(device, k), Tally.of(reference, k)
    found = paired(_sums(device), _sums(reference), bench.seed)
    line = f"device {mine.acceptance_length:.3f}, reference {true.acceptance_length:.3f}: "
    line += f"accepted drafts {mine.accepted_drafts:.3f}, {true.accepted_drafts:.3f}; "
    line += f"rounds of two tokens or more {mine.two_or_more_share:.0%}, {true.two_or_more_share:.0%}"
    check = _bounded(bench, FREE, found, line, min(mine.rounds, true.rounds), len(device))
    yield check if credible else Check(FREE, INCONCLUSIVE, f"the counts do not add up; {check.evidence}", check.figures)
    both = zip(mine.conditional, true.conditional, strict=True)
    rates = ", ".join(f"{place}: {one:.3f} / {other:.3f}" for place, (one, other) in enumerate(both, 1))
    figures = {"device": mine.figures()["conditional"], "reference": true.figures()["conditional"]}
    yield Check(
        "conditional rates", NOT_JUDGED, f"draft i of rounds that accepted i - 1, device / reference: {rates}", figures
    )


def teacher_forced(bench: Bench) -> Check:
    """Drafts made in the golden's states, against the golden's text and logits."""
    try:
        mine, true = _all_forced(bench)
    except Inconclusive as error:
        return Check(FORCED, INCONCLUSIVE, str(error))
    greedy, expected = (
        paired(_forced_sums(mine, part), _forced_sums(true, part), bench.seed) for part in ("greedy", "expected")
    )
    rounds = sum(len(one.greedy) for one in mine)
    lengths = [sum(one.greedy.sum() for one in side) / max(rounds, 1) for side in (mine, true)]
    weighed = [sum(one.expected.sum() for one in side) / max(rounds, 1) for side in (mine, true)]
    line = f"device {lengths[0]:.3f}, reference {lengths[1]:.3f}"
    check = _bounded(bench, FORCED, greedy, line, rounds, len(mine))
    more = f"{check.evidence}; expected by the golden's logits {weighed[0]:.3f}, {weighed[1]:.3f}: {expected}"
    figures = check.figures | {"expected": {"device": weighed[0], "reference": weighed[1], **_figures(expected)}}
    return Check(FORCED, check.verdict, more, figures)


def emits_what_counts(bench: Bench) -> Check:
    """An accepted run that EOS or the budget cuts emits what is before the cut, and that alone."""
    golden, device = bench.golden.manifest.case, bench.device()
    ids, eos = golden.prompts[0].ids, device.describe().eos
    try:
        found = rule(device, ids, cuts(ids, golden.k, eos))
    except Inconclusive as error:
        return Check(CUTS, INCONCLUSIVE, f"not checked: {error}")
    figures = {"rounds": found.rounds, "wrong": list(found.wrong)}
    if found.wrong:
        return Check(
            CUTS, FAIL, f"{len(found.wrong)} of {found.rounds} rounds emit other tokens; {found.wrong[0]}", figures
        )
    if not eos:
        return Check(CUTS, INCONCLUSIVE, "the device names no end token: only cuts by the budget were checked", figures)
    return Check(
        CUTS, PASS, f"{found.rounds} made-up rounds, every budget to K+1, an end token in every place", figures
    )


def _bounded(bench: Bench, name: str, found: Interval, line: str, rounds: int, prompts: int) -> Check:
    judged, why = verdict(found, bench.bound, rounds, prompts)
    line += f"; {found}; {rounds} rounds, {prompts} prompts" + (f"; {why}" if why else "")
    return Check(name, judged, line, _figures(found) | {"bound": bench.bound, "rounds": rounds, "prompts": prompts})


def _recount(bench: Bench) -> list[str]:
    """The golden's counts against its own drafts and text."""
    try:
        _, true = _all_forced(bench)
    except Inconclusive:
        return []  # the teacher-forced check says so
    pairs = zip(true, bench.golden.manifest.case.prompts, strict=True)
    return [f"reference {case.id}: its drafts give other counts" for one, case in pairs if not recounted(one, case)]


def _shown(bench: Bench) -> list[str]:
    """The device's own `accept.length` against its own `accept.emitted`, in every round of the run."""
    run, cases = bench.run("chained"), bench.golden.manifest.case.prompts
    variant, wrong = run.manifest.case.precision, []
    for _, prompt, round_, _ in [place for place in run.rows if place[3] == "accept.length"]:
        length, emitted = (run.stored(variant, prompt, round_, f"accept.{part}") for part in ("length", "emitted"))
        if emitted is not None and int(length[0]) != len(emitted):
            wrong.append(
                f"device {cases[prompt].id}, round {round_}: shows length {int(length[0])}, emits {len(emitted)}"
            )
    return wrong


def _all_forced(bench: Bench) -> tuple[list[Forced], list[Forced]]:
    golden, run = bench.golden, bench.run("chained")
    prompts = range(len(golden.manifest.case.prompts))
    mine = [forced(golden, run, run.manifest.case.precision, number) for number in prompts]
    return mine, [forced(golden, golden, "float32", number) for number in prompts]


def _sums(generations: Sequence[Generation]) -> Sums:
    return Sums(
        np.array([len(one.emitted) - 1 for one in generations], np.float64),
        np.array([len(one.acceptance_length) for one in generations], np.float64),
    )


def _forced_sums(found: Sequence[Forced], part: str) -> Sums:
    return Sums(
        np.array([getattr(one, part).sum() for one in found], np.float64),
        np.array([len(one.greedy) for one in found], np.float64),
    )


def _figures(found: Interval) -> dict[str, float]:
    return {"relative": found.estimate, "low": found.low, "high": found.high}
