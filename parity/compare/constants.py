"""The numbers of config.json as the device reads them against the reference's reading: equal, every one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parity.compare.structure import Finding
from parity.golden.manifest import Constant
from parity.golden.store import Dump

KIND = "config"
SIDES = ("target", "drafter")


@dataclass(frozen=True)
class Constants:
    """What became of the check: how many numbers were compared, findings, and why it was not made, or not whole."""

    compared: int
    findings: tuple[Finding, ...]
    unjudged: tuple[str, ...]


def check_constants(golden: Dump, run: Dump) -> Constants:
    """Compare every constant, of a run or of both runs whose difference it is.

    A constant of which either side says nothing by itself is a finding or a word of what was not judged: what the
    reference reads a device that describes itself must say; what a device reads beyond it nobody can judge.
    """
    compared, findings, unjudged = 0, [], []
    for dump in run.sides:
        who = dump.manifest.producer.name
        for side in SIDES:
            true, seen = (getattr(one.manifest.model, side).constants for one in (golden, dump))
            if not true or not seen:
                silent = f"the golden, for the {side}" if not true else who
                unjudged.append(f"config constants: {silent} does not say what it read of config.json")
                continue
            compared += len(true)
            findings += [Finding(KIND, KIND, 0, 0, f"{who}, {side}: {said}") for said in _differences(true, seen)]
            if beyond := sorted(seen.keys() - true.keys()):
                unjudged.append(f"config constants: the reference does not read {', '.join(beyond)} of the {side}, {who} does")
    return Constants(compared, tuple(findings), tuple(dict.fromkeys(unjudged)))


def _differences(true: dict[str, Constant], seen: dict[str, Constant]) -> Iterator[str]:
    for key, value in true.items():
        if key not in seen:
            yield f"{key} is unread, the reference reads {_shown(value)}"
        elif isinstance(value, bool) != isinstance(seen[key], bool) or value != seen[key]:
            yield f"{key} is {_shown(seen[key])}, the reference reads {_shown(value)}"


def _shown(value: Constant) -> str:
    return str(list(value)) if isinstance(value, tuple) else repr(value)
