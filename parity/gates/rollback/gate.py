"""Caches after rejection: what random accept / reject histories leave in them, against never having speculated."""

from __future__ import annotations

from collections.abc import Iterator

from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS
from parity.errors import Inconclusive
from parity.gates.context import GateContext, NoiseFloors
from parity.gates.gate import Check
from parity.gates.rollback.baseline import Baseline, starts, window
from parity.gates.rollback.explore import ERRORS, POISON, ROWS, STATE, Exploration, explore
from parity.gates.rollback.history import NAN, SENTINEL
from parity.gates.rollback.kept import kept_rows
from parity.gates.rollback.play import HistoryPlayer
from parity.gates.rollback.repeat import (
    RepeatResult,
    comparison_for,
    not_repeated,
    repeat_check,
    repeat_more,
    repeat_round,
    unless_device_fails,
)
from parity.gates.rollback.sameness import WithinNoise
from parity.gates.rollback.shown_caches import as_far_as_shown
from parity.seam import Device, Poisonable
from parity.shown import stages_of
from parity.stages import TARGET_LOGITS

PART = 8
"""the context's precision plays an eighth of the histories: the same code ran in float32, only bits can differ."""

NOT_TRANSACTIONAL = (
    "a verb that raises does not leave the state it found, the device says; "
    "`parity.adapters.transactional` makes it do so"
)


def checks(context: GateContext) -> Iterator[Check]:
    """The invariants in float32, then those that hold bit for bit in the context's precision."""
    device = context.device("float32")
    yield from as_far_as_shown(_checks(context, device), device)


def _checks(context: GateContext, device: Device) -> Iterator[Check]:
    baselines = baselines_of(context, device)
    exploration, line = explored(context, device, baselines, "float32", context.histories)
    yield line
    yield _rows(context, exploration)
    yield _state(context, exploration)
    yield _poison(context, exploration)
    yield _errors(context, exploration)
    if context.precision != "float32":
        yield from _exact(context, baselines)


def explored(
    context: GateContext, device: Device, baselines: list[Baseline], precision: str, count: int
) -> tuple[Exploration, Check]:
    """Histories on a device, and whether it repeats itself: without that, other bits accuse nobody.

    A device that repeated itself and then gave other bits in a verb that was called again is asked more often, before
    its error recovery is blamed. One that fails when it is asked to repeat itself is judged by the histories.
    """
    says = device.describe()
    names = stages_of(says)
    within = WithinNoise(names, precision, NoiseFloors(context.golden))
    exact = precision == context.precision != "float32"
    baseline = max(baselines, key=lambda baseline: len(baseline.ids))

    def play(measured: RepeatResult | None) -> Exploration:
        same, kept = comparison_for(measured, within), kept_rows(within.noise)
        player = HistoryPlayer(device, baselines, exact, same=same, kept=kept)
        return explore(player, count, context.seed + exact, context.progress, f"rollback, {precision}")

    measured, failed = unless_device_fails(repeat_round, device, baseline, within)
    exploration = play(measured)
    if measured and measured.exact and {POISON, ERRORS} & exploration.failures.keys():
        measured, failed = unless_device_fails(repeat_more, device, baseline, within)
        exploration = exploration if measured is None or measured.exact else play(measured)
    return exploration, repeat_check(measured, within) if measured else not_repeated(failed, within)


def baselines_of(context: GateContext, device: Device) -> list[Baseline]:
    """The texts that histories follow, and the state over them."""
    says = device.describe()
    more = 4 * (says.k + 1) + 1
    chosen = starts(context.golden, says.max_positions - more - says.k - 1)
    if not chosen:
        raise Inconclusive(f"{says.max_positions} positions are too few for a history of {more} tokens")
    noise = NoiseFloors(context.golden)
    return [Baseline(device, prompt, ids, more, noise.flip_bound(TARGET_LOGITS)) for prompt, ids in chosen]


def _rows(context: GateContext, exploration: Exploration) -> Check:
    """Lengths, tokens and rows bit for bit; the coverage of the exploration as well."""
    name, coverage = "accept and reject, float32", exploration.player.coverage
    verdict, missing = PASS, _missing(context, exploration)
    if ROWS in exploration.failures:
        return _failed(name, exploration, ROWS)
    if missing and exploration.wrong:
        return _unjudged(name)
    if missing:
        verdict = INCONCLUSIVE
    accepted = _accepted(exploration)
    line = (
        f"{_explored(exploration)}; accepted {', '.join(map(str, accepted))} of {exploration.player.k}; lengths right, "
        f"{coverage.rows} committed rows bit-equal after the round{_past(context, exploration)}{missing}"
    )
    figures = {
        "histories": len(exploration.played),
        "rounds": coverage.rounds,
        "longest": coverage.longest,
        "accepted": {f"{right} of {of}": n for (right, of), n in sorted(coverage.accepted.items())},
    }
    return Check(name, verdict, line, figures)


def _missing(context: GateContext, exploration: Exploration) -> str:
    """What the exploration did not reach."""
    lacks = []
    if exploration.wrong is None and len(exploration.played) < context.histories:
        lacks.append(f"only {len(exploration.played)} of {context.histories} histories are distinct")
    never = sorted(set(range(exploration.player.k + 1)) - set(_accepted(exploration)))
    if never:
        lacks.append(f"no round accepted {', '.join(map(str, never))} of {exploration.player.k}")
    edge = window(context.golden)
    if edge and not any(len(baseline.ids) > edge for baseline in exploration.player.baselines):
        lacks.append(f"no history is longer than the sliding window of {edge}")
    return "".join(f"; {lack}" for lack in lacks)


def _accepted(exploration: Exploration) -> list[int]:
    """How many of K drafts were accepted, each number that occurred."""
    return sorted(
        right for (right, of), n in exploration.player.coverage.accepted.items() if of == exploration.player.k and n
    )


def _explored(exploration: Exploration) -> str:
    coverage = exploration.player.coverage
    return f"{len(exploration.played)} histories, up to {coverage.longest} rounds, {coverage.rounds} in all"


def _past(context: GateContext, exploration: Exploration) -> str:
    edge = window(context.golden)
    return f", sliding windows of {edge} too" if edge else ""


def _state(context: GateContext, exploration: Exploration) -> Check:
    name = "as never speculated, float32"
    if STATE in exploration.failures:
        return _failed(name, exploration, STATE)
    if exploration.wrong:
        return _unjudged(name)
    worst, stage = exploration.player.coverage.worst
    bound = exploration.player.bound(stage)
    line = (
        f"target, drafter and logits are a single prefill's, whether rows came one at a time or in one batch; "
        f"worst row {worst:.2g} of its RMS at {stage}, bound {bound:g}"
    )
    return Check(name, PASS, line, {"worst": worst, "stage": stage, "bound": bound})


def _poison(context: GateContext, exploration: Exploration) -> Check:
    name = "poisoned dead rows"
    if POISON in exploration.failures:
        return _failed(name, exploration, POISON)
    if not isinstance(exploration.player.device, Poisonable):
        return Check(name, INCONCLUSIVE, "the device has no `poison(value)`: add it (parity.seam.Poisonable)")
    if not exploration.player.device.describe().transactional:
        return Check(name, NOT_JUDGED, NOT_TRANSACTIONAL)
    if exploration.wrong:
        return _unjudged(name)
    if not exploration.poisons:
        return Check(
            name, NOT_JUDGED, "verbs cannot be called again after an error, so there is nothing to compare with"
        )
    counts = {"NaN": _times(exploration, NAN), f"{SENTINEL:g}": exploration.player.coverage.poisoned[SENTINEL]}
    line = "rejected and padded slots held " + ", ".join(f"{value} in {n} rounds" for value, n in counts.items())
    verdict, same = PASS if all(counts.values()) else INCONCLUSIVE, _judged(exploration) or " bit for bit"
    return Check(name, verdict, f"{line}; draft and verify gave the same as before,{same}", {"rounds": counts})


def _times(exploration: Exploration, value: float) -> int:
    """Rounds poisoned with NaN: it is no key of its own."""
    return sum(n for key, n in exploration.player.coverage.poisoned.items() if key != key or key == value)


def _errors(context: GateContext, exploration: Exploration) -> Check:
    name = "errors in mid-round"
    if not exploration.player.device.describe().transactional:
        return Check(name, NOT_JUDGED, NOT_TRANSACTIONAL)
    if ERRORS in exploration.failures:
        return _failed(name, exploration, ERRORS)
    if exploration.wrong:
        return _unjudged(name)
    counts = {verb: exploration.player.coverage.errors[verb] for verb in ("prefill", "draft", "verify", "commit")}
    line = "raised by the tap in " + ", ".join(f"{verb} {n}" for verb, n in counts.items())
    verdict = PASS if all(counts.values()) else INCONCLUSIVE
    return Check(
        name,
        verdict,
        f"{line} times; the verb, or the round, once more gave the same{_judged(exploration)}",
        {"raised": counts},
    )


def _exact(context: GateContext, baselines: list[Baseline]) -> Iterator[Check]:
    """Whatever holds bit for bit, in the precision the device runs in."""
    name, count = f"bit for bit, {context.precision}", -(-context.histories // PART)
    exploration, line = explored(context, context.device(), baselines, context.precision, count)
    yield line
    if exploration.failures:
        yield _failed(name, exploration, next(iter(exploration.failures)))
        return
    said = f"{_explored(exploration)}; lengths, kept and new rows, poison, errors: as in float32{_judged(exploration)}"
    yield Check(
        name, PASS if len(exploration.played) >= count else INCONCLUSIVE, said, {"histories": len(exploration.played)}
    )


def _judged(exploration: Exploration) -> str:
    """How verbs that were called again were compared, where not by bits."""
    return " within noise" if exploration.player.same.forces else ""


def _failed(name: str, exploration: Exploration, aspect: str) -> Check:
    failure = exploration.failures[aspect]
    return Check(name, FAIL, str(failure), {"history": failure.history, "broken": failure.message}, failure.place)


def _unjudged(name: str) -> Check:
    return Check(name, NOT_JUDGED, "undisturbed histories break already")
