"""Caches after rejection: what random accept / reject histories leave in them, against never having speculated."""

from __future__ import annotations

from collections.abc import Iterator

from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS
from parity.errors import Inconclusive
from parity.gates.context import Bench, Noise
from parity.gates.evidence import Check
from parity.gates.rollback.explore import ERRORS, POISON, ROWS, STATE, Exploration, explore
from parity.gates.rollback.history import NAN, SENTINEL
from parity.gates.rollback.play import Player
from parity.gates.rollback.repeat import Repeats, asked_more, how, not_asked, repeats, repeats_itself, unless_it_fails
from parity.gates.rollback.sameness import WithinNoise
from parity.gates.rollback.starts import starts, window
from parity.gates.rollback.truth import FLOAT32_BOUND, Truth
from parity.seam import Device, Poisonable
from parity.stages import declared

PART = 8
"""The bench's own precision plays an eighth of the histories: the same code ran in float32, only bits can differ."""


def checks(bench: Bench) -> Iterator[Check]:
    """The invariants in float32, then those that hold bit for bit in the bench's precision."""
    device = bench.device("float32")
    truths = never_speculated(bench, device)
    found, line = explored(bench, device, truths, "float32", bench.histories)
    yield line
    yield _rows(bench, found)
    yield _state(bench, found)
    yield _poison(bench, found)
    yield _errors(bench, found)
    if bench.precision != "float32":
        yield from _exact(bench, truths)


def explored(
    bench: Bench, device: Device, truths: list[Truth], precision: str, count: int
) -> tuple[Exploration, Check]:
    """Histories on a device, and whether it repeats itself: without that, other bits accuse nobody.

    A device that repeated itself and then gave other bits in a verb that was called again is asked more often, before
    its error recovery is blamed. One that fails when it is asked to repeat itself is judged by the histories.
    """
    within = WithinNoise(
        declared(device.describe().num_layers, device.describe().num_drafter_layers), precision, Noise(bench.golden)
    )
    exact = precision == bench.precision != "float32"
    truth = max(truths, key=lambda one: len(one.ids))

    def play(measured: Repeats | None) -> Exploration:
        player = Player(device, truths, exact, same=how(measured, within))
        return explore(player, count, bench.seed + exact, bench.progress, f"rollback, {precision}")

    measured, failed = unless_it_fails(repeats, device, truth, within)
    found = play(measured)
    if measured and measured.exact and {POISON, ERRORS} & found.failures.keys():
        measured, failed = unless_it_fails(asked_more, device, truth, within)
        found = found if measured is None or measured.exact else play(measured)
    return found, repeats_itself(measured, within) if measured else not_asked(failed, within)


def never_speculated(bench: Bench, device: Device) -> list[Truth]:
    """The texts that histories follow, and the state over them."""
    says = device.describe()
    more = 4 * (says.k + 1) + 1
    chosen = starts(bench.golden, says.max_positions - more - says.k - 1)
    if not chosen:
        raise Inconclusive(f"{says.max_positions} positions are too few for a history of {more} tokens")
    return [Truth(device, prompt, ids, more) for prompt, ids in chosen]


def _rows(bench: Bench, found: Exploration) -> Check:
    """Lengths, tokens and rows bit for bit; the coverage of the exploration as well."""
    name, tally = "accept and reject, float32", found.player.tally
    verdict, missing = PASS, _missing(bench, found)
    if ROWS in found.failures:
        return _failed(name, found, ROWS)
    if missing and found.wrong:
        return _unjudged(name)
    if missing:
        verdict = INCONCLUSIVE
    accepted = _accepted(found)
    line = (
        f"{_explored(found)}; accepted {', '.join(map(str, accepted))} of {found.player.k}; lengths right, "
        f"{tally.rows} committed rows bit-equal after the round{_past(bench, found)}{missing}"
    )
    figures = {
        "histories": len(found.played),
        "rounds": tally.rounds,
        "longest": tally.longest,
        "accepted": {f"{right} of {of}": n for (right, of), n in sorted(tally.accepted.items())},
    }
    return Check(name, verdict, line, figures)


def _missing(bench: Bench, found: Exploration) -> str:
    """What the exploration did not reach."""
    lacks = []
    if found.wrong is None and len(found.played) < bench.histories:
        lacks.append(f"only {len(found.played)} of {bench.histories} histories are distinct")
    never = sorted(set(range(found.player.k + 1)) - set(_accepted(found)))
    if never:
        lacks.append(f"no round accepted {', '.join(map(str, never))} of {found.player.k}")
    edge = window(bench.golden)
    if edge and not any(len(truth.ids) > edge for truth in found.player.truths):
        lacks.append(f"no history is longer than the sliding window of {edge}")
    return "".join(f"; {one}" for one in lacks)


def _accepted(found: Exploration) -> list[int]:
    """How many of K drafts were accepted, each number that occurred."""
    return sorted(right for (right, of), n in found.player.tally.accepted.items() if of == found.player.k and n)


def _explored(found: Exploration) -> str:
    tally = found.player.tally
    return f"{len(found.played)} histories, up to {tally.longest} rounds, {tally.rounds} in all"


def _past(bench: Bench, found: Exploration) -> str:
    edge = window(bench.golden)
    return f", sliding windows of {edge} too" if edge else ""


def _state(bench: Bench, found: Exploration) -> Check:
    name = "as never speculated, float32"
    if STATE in found.failures:
        return _failed(name, found, STATE)
    if found.wrong:
        return _unjudged(name)
    worst, stage = found.player.tally.worst
    line = (
        f"target, drafter and logits are a single prefill's, whether rows came one at a time or in one batch; "
        f"worst row {worst:.2g} of its RMS at {stage}, bound {FLOAT32_BOUND:g}"
    )
    return Check(name, PASS, line, {"worst": worst, "stage": stage, "bound": FLOAT32_BOUND})


def _poison(bench: Bench, found: Exploration) -> Check:
    name = "poisoned dead rows"
    if POISON in found.failures:
        return _failed(name, found, POISON)
    if not isinstance(found.player.device, Poisonable):
        return Check(name, INCONCLUSIVE, "the device has no `poison(value)`: add it (parity.seam.Poisonable)")
    if found.wrong:
        return _unjudged(name)
    if not found.poisons:
        return Check(name, NOT_JUDGED, "verbs cannot be called again after an error, so nothing can be held against")
    counts = {"NaN": _times(found, NAN), f"{SENTINEL:g}": found.player.tally.poisoned[SENTINEL]}
    line = "rejected and padded slots held " + ", ".join(f"{value} in {n} rounds" for value, n in counts.items())
    verdict, same = PASS if all(counts.values()) else INCONCLUSIVE, _judged(found) or " bit for bit"
    return Check(name, verdict, f"{line}; draft and verify gave the same as before,{same}", {"rounds": counts})


def _times(found: Exploration, value: float) -> int:
    """Rounds poisoned with NaN: it is no key of its own."""
    return sum(n for key, n in found.player.tally.poisoned.items() if key != key or key == value)


def _errors(bench: Bench, found: Exploration) -> Check:
    name = "errors in mid-round"
    if ERRORS in found.failures:
        return _failed(name, found, ERRORS)
    if found.wrong:
        return _unjudged(name)
    counts = {verb: found.player.tally.errors[verb] for verb in ("prefill", "draft", "verify", "commit")}
    line = "raised by the tap in " + ", ".join(f"{verb} {n}" for verb, n in counts.items())
    verdict = PASS if all(counts.values()) else INCONCLUSIVE
    return Check(
        name,
        verdict,
        f"{line} times; the verb, or the round, once more gave the same{_judged(found)}",
        {"raised": counts},
    )


def _exact(bench: Bench, truths: list[Truth]) -> Iterator[Check]:
    """Whatever holds bit for bit, in the precision the device runs in."""
    name, count = f"bit for bit, {bench.precision}", -(-bench.histories // PART)
    found, line = explored(bench, bench.device(), truths, bench.precision, count)
    yield line
    if found.failures:
        yield _failed(name, found, next(iter(found.failures)))
        return
    said = f"{_explored(found)}; lengths, kept and new rows, poison, errors: as in float32{_judged(found)}"
    yield Check(name, PASS if len(found.played) >= count else INCONCLUSIVE, said, {"histories": len(found.played)})


def _judged(found: Exploration) -> str:
    """How verbs that were called again were compared, where not by bits."""
    return " within noise" if found.player.same.forces else ""


def _failed(name: str, found: Exploration, aspect: str) -> Check:
    failure = found.failures[aspect]
    return Check(name, FAIL, str(failure), {"history": failure.history, "broken": failure.message}, failure.place)


def _unjudged(name: str) -> Check:
    return Check(name, NOT_JUDGED, "undisturbed histories break already")
