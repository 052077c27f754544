"""Devices that misbehave, run by `parity diff`: they raise, end, hang, patch, print and hand over nonsense."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

from tests.torture.attempts import NOT_ACCEPTED, SAME, Attack, Attempt
from tests.torture.bases import Bases, lay_out
from tests.torture.child import Ended
from tests.torture.misbehaving import CLEAN_WRAPS, KINDS, WHERE

MODULE = "tests.torture.misbehaving"
ISOLATED, TIME, MEMORY = ["--isolate"], ["--time-limit", "8"], ["--memory-limit", "1"]
"""A process of their own for devices that end or hang, limits of its time and memory."""

DEADLY = (
    "exits 0", "exits 1", "becomes true", "aborts", "segfaults", "kills itself", "ends itself", "alarms itself",
    "pipe signal", "timer exits 0", "takes memory",
)  # fmt: skip
"""What nothing in the same process survives."""
UNREAD = {"factory": tuple(what for what in KINDS["broken"] if what.startswith("returns"))}
"""What comes back and nothing is made of: `load` drops what its factory's deed returns."""
LIMITED = ("few files", "no file size")
"""What a log that is a file meets as well."""
INTERRUPTED = ("raises KeyboardInterrupt", "raises Abort", "interrupts itself", "interrupts main")


def attack(bases: Bases) -> Attack:
    """Every misbehaviour at every place; every fifth in a process of its own, the others in a fork."""
    devices = [("clean", "", "")] + [
        (kind, what, where)
        for kind, known in KINDS.items()
        for what in known
        for where in (WHERE if kind not in ("taps", "wraps") else ("",))
    ]
    os.environ["TORTURE_RUN"] = str(bases.real / "run")

    def prepare(number: int, rng: Random, folder: Path) -> Attempt:
        kind, what, where = devices[number % len(devices)]
        lay_out(bases.real, folder)
        (folder / "work" / "home").mkdir()
        arguments = ["diff", "--golden", "golden", "--device", _name(kind, what, where)]
        if kind in ("hostile", "hangs") or what in DEADLY:
            arguments += ISOLATED + (TIME if kind == "hangs" else MEMORY if what == "takes memory" else [])
        title = f"{kind} {what!r} at {where or 'every stage'}"
        process = number % 5 == 0 or kind in ("hostile", "hangs")
        after = (lambda ended: []) if kind != "clean" else _passes
        return Attempt(
            title, _allowed(kind, what, where), arguments, after, process,
            seconds=40.0, runs_code=True, raw=what == "prints escapes", piped=what in LIMITED,
        )  # fmt: skip

    return Attack("devices", len(devices), prepare, 60)


def _name(kind: str, what: str, where: str) -> str:
    if kind == "clean":
        return "tests.torture.replay:load"
    options = f",kind={kind},what={list(KINDS[kind]).index(what)}" + (f",where={where}" if where else "")
    return f"{MODULE}:load{options}"


def _allowed(kind: str, what: str, where: str) -> frozenset[int]:
    """A pass of what is clean, and of it alone."""
    if kind in ("clean", "harmless") or what in UNREAD.get(where, ()) or what in CLEAN_WRAPS:
        return SAME
    if what in INTERRUPTED:
        return NOT_ACCEPTED | {130}
    return NOT_ACCEPTED


def _passes(ended: Ended):
    return [] if "verdict: pass" in ended.out else [("misjudged", "the clean device does not pass")]
