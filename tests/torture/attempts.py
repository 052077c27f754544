"""One attempt: what is done to parity, which outcomes are allowed, and what is wrong with the one that came."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.torture.child import Ended

PASS, FAIL, REFUSED, INCONCLUSIVE = 0, 1, 2, 3
UNREADABLE = frozenset({REFUSED})
NOT_ACCEPTED = frozenset({FAIL, REFUSED, INCONCLUSIVE})
SAME = frozenset({PASS})
"""The verdict of the clean evidence, which passes: the edit is provably without a meaning."""
SAME_OR_UNREADABLE = frozenset({PASS, REFUSED})
ANY = SAME | NOT_ACCEPTED
"""The edit says something of its own (a label, a path): any verdict, but a verdict."""

LOST, ACCEPTED, MISJUDGED, TRACEBACK = "lost", "wrongly accepted", "misjudged", "tracebacks"
HANG, EXECUTED, OUTSIDE, MEMORY, ESCAPES = "hangs", "executed", "outside", "above 2 GB", "raw control characters"
LEFT = "left behind"
COUNTS = (LOST, LEFT, ACCEPTED, MISJUDGED, TRACEBACK, HANG, EXECUTED, OUTSIDE, MEMORY, ESCAPES)

MOST_MEMORY = 2 * 2**30
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
BROKEN = re.compile(r"Traceback \(most recent call last\)|internal error|MarkupError|Fatal Python error")

Bad = list[tuple[str, str]]
"""Counts that an outcome raises, each with what was seen."""


@dataclass(frozen=True)
class Attempt:
    """One attempt, prepared in a folder of its own.

    Args:
        name: what is done, in words.
        allowed: the exit codes that are right.
        arguments: of `parity`.
        after: what else is wrong once it ended: lost files, leftovers.
        process: a real process; a fork of the attack otherwise.
        before: run in the child before parity, such as a planted failure.
        seconds: until it hangs.
        runs_code: code of the attempt is meant to run: a device.
        raw: the attempt itself prints control characters.
        piped: what it prints goes through a pipe: no limit of a file's size meets that.
        ends: the attempt kills the command itself, so that its exit code and output say nothing.
    """

    name: str
    allowed: frozenset[int]
    arguments: Sequence[str]
    after: Callable[[Ended], Bad] = lambda ended: []
    process: bool = False
    before: Callable[[], None] | None = None
    seconds: float = 20.0
    runs_code: bool = False
    raw: bool = False
    ends: bool = False
    piped: bool = False


@dataclass(frozen=True)
class Attack:
    """A class of attempts: `prepare(number, rng, folder)` is one of them, the same for the same seed and number.

    Args:
        count: attempts until everything was tried once; more of them go on at random.
        slice: attempts of the short run.
    """

    name: str
    count: int
    prepare: Callable[[int, Random, Path], Attempt]
    slice: int


def judged(attempt: Attempt, ended: Ended) -> Bad:
    """What is wrong with an outcome; nothing where it is allowed."""
    bad: Bad = [(EXECUTED, what) for what in ended.executed if not attempt.runs_code] + [
        (OUTSIDE, what) for what in ended.outside
    ]
    if ended.memory > MOST_MEMORY or ("MemoryError" in ended.err and not attempt.runs_code):
        bad.append((MEMORY, f"{ended.memory / 2**30:.1f} GB"))
    if ended.hang:
        bad.append((HANG, f"no end after {attempt.seconds:g} s"))
    elif not attempt.ends:
        bad += _code(attempt, ended)
    return bad + attempt.after(ended)


def _code(attempt: Attempt, ended: Ended) -> Bad:
    bad: Bad = []
    if ended.code not in attempt.allowed:
        wanted = ", ".join(map(str, sorted(attempt.allowed)))
        bad.append((ACCEPTED if ended.code == PASS else MISJUDGED, f"exit {ended.code}, allowed {wanted}"))
    if found := BROKEN.search(ended.out + ended.err):
        bad.append((TRACEBACK, found.group()))
    elif ended.code < 0:
        bad.append((TRACEBACK, f"ended by signal {-ended.code}"))
    elif ended.code == REFUSED and not any(line.startswith("parity: ") for line in ended.err.splitlines()):
        bad.append((TRACEBACK, "exit 2 without a sentence"))
    if (found := CONTROL.search(ended.out + ended.err)) and not attempt.raw:
        bad.append((ESCAPES, ascii(found.group())))
    return bad
