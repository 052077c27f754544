"""The numbers of config.json as the device reads them against the reference's reading: equal, every one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parity.compare.structure import Finding
from parity.compare.witnesses import doubted_sides
from parity.golden.manifest import Constant
from parity.golden.views import DumpView, TrustedGolden

KIND = "config"
SIDES = ("target", "drafter")


@dataclass(frozen=True)
class Constants:
    """What became of the check: how many numbers were compared, findings, and why it was not made, or not whole.

    `set_aside` convict nobody: the references disagree on a stage of the side that they are of. `silent` is a side that
    the device says nothing of, though it describes the other one.
    """

    compared: int
    findings: tuple[Finding, ...]
    unjudged: tuple[str, ...]
    set_aside: tuple[Finding, ...] = ()
    silent: str = ""


def check_constants(golden: TrustedGolden, run: DumpView) -> Constants:
    """Compare every constant of a run with the golden's; of two runs whose difference it is, with each other's.

    What the reference reads a device that describes itself must say. What one side alone says is not judged otherwise.
    """
    other, against = run.sides if len(run.sides) == 2 else (golden, run)
    alone = against is run  # with the golden
    names = "the reference" if alone else other.manifest.producer.name, against.manifest.producer.name
    compared, findings, unjudged, set_aside = 0, [], [], []
    silent = _silent(golden, run) if alone else ""
    doubted = doubted_sides(golden) if alone else set()
    for side in SIDES:
        true, seen = (getattr(one.manifest.model, side).constants for one in (other, against))
        if not true or not seen:
            of = f" of the {side}" if side == silent else ""
            unjudged.append(f"{names[bool(true)]} does not say what it read of config.json{of}")
            continue
        compared += len(true)
        said = _differences(true, seen, names[0], every=alone)
        (set_aside if side in doubted else findings).extend(
            Finding(KIND, KIND, 0, 0, f"{names[1]}, {side}: {one}") for one in said
        )
        for mine, theirs, who in ((seen, true, names), (() if alone else true, seen, names[::-1])):
            if beyond := sorted(set(mine) - set(theirs)):
                unjudged.append(f"{who[0]} does not read {', '.join(beyond)} of the {side}, {who[1]} does")
    return Constants(compared, tuple(findings), tuple(dict.fromkeys(unjudged)), tuple(set_aside), silent)


def _differences(true: dict[str, Constant], seen: dict[str, Constant], who: str, every: bool) -> Iterator[str]:
    for key, value in true.items():
        if key not in seen:
            if every:
                yield f"{key} is unread, {who} reads {_shown(value)}"
        elif _kinds(value) != _kinds(seen[key]) or value != seen[key]:
            yield f"{key} is {_shown(seen[key])}, {who} reads {_shown(value)}"


def _silent(golden: TrustedGolden, run: DumpView) -> str:
    """The side that the golden describes and the run does not, though it describes the other; '' where there is none."""
    said = [side for side in SIDES if getattr(run.manifest.model, side).constants]
    lacking = [side for side in SIDES if side not in said and getattr(golden.manifest.model, side).constants]
    return lacking[0] if said and lacking else ""


def _kinds(value: Constant) -> list[bool]:
    """Which parts of a constant are true or false: 1 is not True."""
    return [isinstance(one, bool) for one in (value if isinstance(value, (tuple, list)) else (value,))]


def _shown(value: Constant) -> str:
    return str(list(value)) if isinstance(value, tuple) else repr(value)
