"""Devices that misbehave, run by `parity diff`: they raise, end, hang, patch, print and hand over nonsense."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

from click.testing import CliRunner

from parity.cli import cli
from tests.torture.attempts import ANY, NOT_ACCEPTED, SAME, Attack, Attempt
from tests.torture.bases import Bases, lay_out
from tests.torture.child import Ended
from tests.torture.misbehaving import KINDS, WHERE

MODULE = "tests.torture.misbehaving"
SECONDS = 8

DEADLY = (
    "exits 0", "exits 1", "becomes true", "aborts", "segfaults", "kills itself", "ends itself", "alarms itself", "pipe signal",
    "timer exits 0", "takes memory",
)  # fmt: skip
"""What nothing in the same process survives."""
INTERRUPTED = ("raises KeyboardInterrupt", "raises Abort", "interrupts itself", "interrupts main")


def attack(bases: Bases) -> Attack:
    """Every misbehaviour at every place; every fifth in a process of its own, the others in a fork."""
    devices = [("clean", "", "")] + [
        (kind, what, where)
        for kind, known in KINDS.items()
        for what in known
        for where in (WHERE if kind not in ("taps", "wraps") else ("",))
    ]
    isolate, time, memory = _offered()
    os.environ["TORTURE_RUN"] = str(bases.real / "run")

    def prepare(number: int, rng: Random, folder: Path) -> Attempt:
        kind, what, where = devices[number % len(devices)]
        lay_out(bases.real, folder)
        (folder / "work" / "home").mkdir()
        arguments = ["diff", "--golden", "golden", "--device", _name(kind, what, where)]
        if kind in ("hostile", "hangs") or what in DEADLY:
            arguments += isolate + (time if kind == "hangs" else memory if what == "takes memory" else [])
        title = f"{kind} {what!r} at {where or 'every stage'}"
        process = number % 5 == 0 or kind in ("hostile", "hangs")
        after = (lambda ended: []) if kind != "clean" else _passes
        return Attempt(title, _allowed(kind, what, where), arguments, after, process, seconds=40.0, runs_code=True, raw=what == "prints escapes")

    return Attack("devices", len(devices), prepare, 60)


def _name(kind: str, what: str, where: str) -> str:
    if kind == "clean":
        return "tests.torture.replay:load"
    options = f",kind={kind},what={list(KINDS[kind]).index(what)}" + (f",where={where}" if where else "")
    return f"{MODULE}:load{options}"


def _allowed(kind: str, what: str, where: str) -> frozenset[int]:
    """A pass only of what is clean; what a verb returns counts only where something is made of it."""
    if kind == "clean":
        return SAME
    if kind == "harmless" or what.startswith("returns") and where in ("draft", "verify"):
        return ANY
    if what in INTERRUPTED:
        return NOT_ACCEPTED | {130}
    return NOT_ACCEPTED


def _passes(ended: Ended):
    return [] if "verdict: pass" in ended.out else [("misjudged", "the clean device does not pass")]


def _offered() -> tuple[list[str], list[str], list[str]]:
    """What the command offers for devices that end or hang: a process of their own, limits of its time and memory."""
    said = CliRunner().invoke(cli, ["diff", "--help"]).output
    options = (["--isolate"], ["--time-limit", str(SECONDS)], ["--memory-limit", "1"])
    return tuple(option if option[0] in said else [] for option in options)

