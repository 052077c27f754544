"""Whether a device repeats itself: the same verbs from the same state, with the same input, several times over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isinf
from typing import Any

import numpy as np

from parity.compare.report import FAIL, INCONCLUSIVE, PASS, Place
from parity.errors import DeviceEnded, DeviceFailed
from parity.families import family_of
from parity.gates.gate import Check
from parity.gates.rollback.baseline import Baseline, RecordingTap
from parity.gates.rollback.invariants import position_of
from parity.gates.rollback.sameness import BitExact, RepeatComparison, StageTensors, WithinNoise, chosen
from parity.seam import Device
from parity.stages import Named, dataflow

PLAYS = 4
"""One to leave behind what every later one finds, one to compare with, and two more. A device whose sums come in random
order has thousands of rows in each: that all of them fall alike by chance does not happen."""

MORE = 48
"""Plays at the most once a repeated verb gave other bits though `PLAYS` were alike: an order that is another in one
play of ten is missed once in a hundred times."""


@dataclass(frozen=True)
class RepeatResult:
    """What came of it.

    Attributes:
        plays: how often it was played once more.
        tensors, differing: tensors compared, and those of other bits than in the first play.
        first: the first stage whose bits differ, along the dataflow.
        worst: the largest difference of a row as a multiple of its bound, and its stage.
        place: of a row beyond its bound.
        rounds: how many were played behind the prefill; none where it chose an end token.
    """

    plays: int
    tensors: int
    differing: int
    first: str
    worst: tuple[float, str]
    place: Place | None
    rounds: int = 1

    @property
    def exact(self) -> bool:
        """Whether every bit came again."""
        return not self.differing


@dataclass
class RecordedPlay:
    """One prefill and one round: what each verb handed over, the drafts and the target's tokens."""

    seen: dict[str, StageTensors] = field(default_factory=dict)
    drafts: np.ndarray | None = None
    tokens: np.ndarray | None = None


def repeat_more(device: Device, baseline: Baseline, within: WithinNoise) -> RepeatResult:
    """The first repetitions that differ, of `MORE` plays."""
    for _ in range(MORE // PLAYS):
        result = repeat_round(device, baseline, within)
        if not result.exact:
            break
    return result


def repeat_round(device: Device, baseline: Baseline, within: WithinNoise) -> RepeatResult:
    """Play one prefill and one round `PLAYS` times, and compare each play with the second.

    The choices, drafts and tokens of the first are every other one's: what is left to differ is arithmetic, and what a
    verb finds there that the play before did not leave behind.
    """
    script = _play(device, baseline, within.names, None)
    true, *others = (_play(device, baseline, within.names, script).seen for _ in range(PLAYS - 1))
    tensors, worst = 0, (0.0, "")
    bad: list[tuple[bool, str]] = []
    place: Place | None = None
    compared = ((call, name, true[call], seen[call]) for seen in others for call in true for name in true[call])
    for verb, stage, before, now in compared:
        tensors += 1
        if BitExact().changed(stage, before, now) is None:
            continue
        rows = within.apart(stage, before, now)
        bad.append((verb != "prefill", stage))
        worst = max(worst, (float(rows.max()), stage))
        if place is None and worst[0] > 1.0:
            cached = family_of(device.describe().family).prompt_rows(len(baseline.ids))
            position = position_of(verb, stage, int(rows.argmax()), len(baseline.ids), cached)
            place = Place(stage, within.names[stage].layer, baseline.prompt, int(verb != "prefill"), position)
    order = {
        (bool(round_), named.name): n
        for round_ in (0, 1)
        for n, named in enumerate(dataflow(within.names.values(), round_))
    }
    first = min(bad, key=lambda differing: (differing[0], order.get(differing, 0)), default=(False, ""))[1]
    return RepeatResult(len(others), tensors, len(bad), first, worst, place, int("commit" in true))


def _play(device: Device, baseline: Baseline, names: Mapping[str, Named], script: RecordedPlay | None) -> RecordedPlay:
    """Once through the verbs; without a script the device's own drafts and tokens are what it continues with."""
    play, says = RecordedPlay(), device.describe()

    def call(verb: str, *arguments: object) -> Any:
        tap = RecordingTap(routes=chosen(names, script.seen[verb]) if script else None)
        result = getattr(device, verb)(*arguments, tap)
        play.seen[verb] = tap.tensors
        return result

    first = call("prefill", baseline.ids, 2 * says.k + 3)
    if int(first) in says.eos:
        return play
    play.drafts = call("draft")
    drafts = play.drafts if script is None else script.drafts
    play.tokens = call("verify", drafts)
    call("commit", drafts, play.tokens if script is None else script.tokens)
    return play


def unless_device_fails(
    ask: Callable[..., RepeatResult], *arguments: object
) -> tuple[RepeatResult | None, DeviceFailed | None]:
    """What came of the repetitions, or what the device raised in them: the histories find where it fails.

    Raises:
        DeviceEnded: it ended its process.
    """
    try:
        return ask(*arguments), None
    except DeviceEnded:
        raise
    except DeviceFailed as error:
        return None, error


def comparison_for(result: RepeatResult | None, within: WithinNoise) -> RepeatComparison:
    """How a verb that is called again is compared: by its bits, unless the device has shown that it does not repeat
    them."""
    return BitExact() if result is None or result.exact else within


def not_repeated(error: DeviceFailed | None, within: WithinNoise) -> Check:
    """The line of a device that fails when it is asked to repeat itself."""
    return Check(f"repeats itself, {within.precision}", INCONCLUSIVE, f"it could not be asked: {error}")


def repeat_check(result: RepeatResult, within: WithinNoise) -> Check:
    """The line of its own: how often, how much, and the first stage; a failure only where it is no rounding."""
    name = f"repeats itself, {within.precision}"
    figures = {
        "plays": result.plays,
        "tensors": result.tensors,
        "differing": result.differing,
        "worst": result.worst[0],
    }
    if result.exact:
        played = "prefill and a round" if result.rounds else "prefill, which ends the sequence"
        return Check(
            name, PASS, f"{result.plays} more times the same bits in {result.tensors} tensors of {played}", figures
        )
    apart, stage = result.worst
    line = f"it does not: {result.differing} of {result.tensors} tensors have other bits "
    line += f"when the same verbs are called again; first at {result.first}; worst row "
    line += f"{stage} is another choice or shape" if isinf(apart) else f"{within.said(stage, apart)} at {stage}"
    if apart > 1.0:
        return Check(name, FAIL, f"{line}: that is no rounding", figures | {"stage": stage}, result.place)
    return Check(
        name, PASS, f"{line}; a verb called again is judged by that bound, not by bits", figures | {"stage": stage}
    )
