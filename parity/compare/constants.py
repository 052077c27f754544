"""The numbers of config.json as the device reads them, compared with the reference's reading: all must be equal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parity.compare.places import doubted_sides
from parity.compare.structure import Finding
from parity.golden.checkpoints import Constant
from parity.golden.views import DumpView, TrustedGolden

KIND = "config"
SIDES = ("target", "drafter")


@dataclass(frozen=True)
class ConstantsCheck:
    """How many numbers were compared, what differs, and why some were not compared.

    `set_aside` are findings on a side of which the references disagree on a stage. `silent` is a side that the device
    says nothing of, though it describes the other one.
    """

    compared: int
    findings: tuple[Finding, ...]
    unjudged: tuple[str, ...]
    set_aside: tuple[Finding, ...] = ()
    silent: str = ""


def check_constants(golden: TrustedGolden, run: DumpView) -> ConstantsCheck:
    """Compare every constant of a run with the golden's; of two runs whose difference it is, with each other's.

    A device that describes itself must say all that the reference reads. Otherwise what one side alone says is not
    judged.
    """
    two = len(run.sides) == 2
    base, judged = run.sides if two else (golden, run)
    names = base.manifest.producer.name if two else "the reference", judged.manifest.producer.name
    compared, unjudged = 0, []
    findings: list[Finding] = []
    set_aside: list[Finding] = []
    silent = "" if two else _silent(golden, run)
    doubted = set() if two else doubted_sides(golden)
    for side in SIDES:
        true, seen = (getattr(dump.manifest.model, side).constants for dump in (base, judged))
        if not true or not seen:
            of = f" of the {side}" if side == silent else ""
            unjudged.append(f"{names[bool(true)]} does not say what it read of config.json{of}")
            continue
        compared += len(true)
        (set_aside if side in doubted else findings).extend(
            Finding(KIND, KIND, 0, 0, f"{names[1]}, {side}: {difference}")
            for difference in _differences(true, seen, names[0], every=not two)
        )
        for mine, theirs, who in ((seen, true, names), (true if two else (), seen, names[::-1])):
            if beyond := sorted(set(mine) - set(theirs)):
                unjudged.append(f"{who[0]} does not read {', '.join(beyond)} of the {side}, {who[1]} does")
    return ConstantsCheck(compared, tuple(findings), tuple(dict.fromkeys(unjudged)), tuple(set_aside), silent)


def _differences(true: dict[str, Constant], seen: dict[str, Constant], who: str, every: bool) -> Iterator[str]:
    for key, value in true.items():
        if key not in seen:
            if every:
                yield f"{key} is unread, {who} reads {_shown(value)}"
        elif _kinds(value) != _kinds(seen[key]) or value != seen[key]:
            yield f"{key} is {_shown(seen[key])}, {who} reads {_shown(value)}"


def _silent(golden: TrustedGolden, run: DumpView) -> str:
    """The side that the golden describes and the run, though it describes the other, does not; '' if there is none."""
    described = [side for side in SIDES if getattr(run.manifest.model, side).constants]
    lacking = [side for side in SIDES if side not in described and getattr(golden.manifest.model, side).constants]
    return lacking[0] if described and lacking else ""


def _kinds(value: Constant) -> list[bool]:
    """Which parts of a constant are true or false: 1 is not True."""
    return [isinstance(part, bool) for part in (value if isinstance(value, (tuple, list)) else (value,))]


def _shown(value: Constant) -> str:
    return str(list(value)) if isinstance(value, tuple) else repr(value)
