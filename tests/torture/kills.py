"""Commands that write, ended at each write: killed, terminated, interrupted, on a full disk, at any moment."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.torture import child, failures
from tests.torture.attempts import ANY, INCONCLUSIVE, LEFT, LOST, MISJUDGED, Attack, Attempt, Bad
from tests.torture.bases import Bases
from tests.torture.child import Ended
from tests.torture.operations import CORROBORATED, OPERATIONS, Operation

ENDS = ("killed", "terminated", "interrupted", "full disk", "small files", "killed later", "terminated later")
EVERYWHERE = ("killed", "terminated", "full disk")
"""Ends that are tried before every change of a file; of the others as many as DRAWN places or moments are drawn."""

DRAWN = 4

CLEANS_UP = ("terminated", "interrupted", "full disk", "small files", "terminated later")
"""Who still has the time to leave nothing behind."""


class Points:
    """The writes of each operation, counted once on a clean run, with its exit code and how long it took."""

    def __init__(self, bases: Bases):
        self.bases, self.known = bases, {}

    def of(self, operation: Operation) -> tuple[int, int, int]:
        """Changes of files, size of the largest file written, exit code."""
        if operation.name not in self.known:
            trial = self.bases.folder / f"trial.{os.getpid()}"
            shutil.rmtree(trial, ignore_errors=True)
            for part in ("work", "outside", "tmp"):
                (trial / part).mkdir(parents=True)
            work = operation.lay_out(self.bases, trial)
            told = trial / "told"
            failures.handle(told)
            ended = child.run(operation.arguments, trial, operation.seconds, False, failures.count(work, told))
            if ended.code == 2 or ended.hang:
                raise SystemExit(f"{operation.name} fails when nobody disturbs it: {ended.err[-500:]}")
            out = work / operation.out
            files = [path for path in (out, *out.rglob("*")) if path.is_file()]
            self.known[operation.name] = told.stat().st_size, max(path.stat().st_size for path in files), ended.code
            failures.handle.__defaults__[0].clear()
            shutil.rmtree(trial)
        return self.known[operation.name]


def attack(bases: Bases) -> Attack:
    """Every operation, ended in every way: before each change of a file, or at a moment that is drawn."""
    points = Points(bases)
    os.environ["TORTURE_RUN"] = str(bases.real / "run")
    planned = _planned(points)

    def prepare(number: int, rng: Random, folder: Path) -> Attempt:
        operation, how, place = planned[number % len(planned)]
        changes, largest, code = points.of(operation)
        work = operation.lay_out(bases, folder)
        place = rng.randrange(changes) if place is None else place
        size = rng.choice((0, 1, rng.randrange(largest), rng.randrange(largest), largest - 1))
        moment = rng.uniform(0.05, 2)
        before = _failure(how, place, size, moment, work)
        before_files = _files(work)
        words = (
            f"of {changes} changes before {place}"
            if "later" not in how and how != "small files"
            else f"{size} bytes, {moment:.2f} s"
        )

        ends = how not in ("full disk", "small files")

        def after(ended: Ended) -> Bad:
            bad = _checked(operation, how, code, folder, before_files)
            return bad + ([] if ends or ended.code != code else _done(operation, work))

        title = f"{operation.name} {how}: {words}"
        piped = how == "small files"  # its own output is no file that may not grow
        return Attempt(
            title,
            ANY,
            operation.arguments,
            after,
            before=before,
            seconds=operation.seconds,
            runs_code=True,
            ends=ends,
            piped=piped,
        )

    return Attack("kills", len(planned), prepare, len(OPERATIONS) * len(ENDS) // 2)


def _planned(points: Points) -> list[tuple[Operation, str, int | None]]:
    """Every operation, end and place of a change, the first of each first; None where place or moment is drawn."""
    planned: list[tuple[int, Operation, str, int | None]] = []
    for operation in OPERATIONS:
        changes = points.of(operation)[0]
        for how in ENDS:
            places = range(changes) if how in EVERYWHERE else [None] * DRAWN
            planned += [(turn, operation, how, place) for turn, place in enumerate(places)]
    return [(operation, how, place) for _, operation, how, place in sorted(planned, key=lambda one: one[0])]


def _failure(how: str, place: int, size: int, moment: float, work: Path) -> Callable[[], None]:
    match how:
        case "killed":
            return failures.at(place, work, failures.kill)
        case "terminated" | "interrupted":
            return failures.at(place, work, failures.once(signal.SIGTERM if how == "terminated" else signal.SIGINT))
        case "full disk":
            return failures.at(place, work, failures.full)
        case "small files":
            return failures.small_files(size)
    return failures.later(moment, signal.SIGKILL if how == "killed later" else signal.SIGTERM)


def _checked(operation: Operation, how: str, code: int, folder: Path, before: dict[str, bytes]) -> Bad:
    """What was there is there, what was written is whole, nothing is left behind, and the command works again."""
    work, bad = folder / "work", []
    out = work / operation.out
    bad += [
        (LOST, f"{name} changed")
        for name, data in before.items()
        if not operation.writes(name) and _read(work / name) != data
    ]
    left = leftovers(folder)
    if how in CLEANS_UP and left:
        bad.append((LEFT, f"{left[0]} and {len(left) - 1} more"))
    if out.exists():
        bad += _whole(operation, out)
    elif operation.default:
        bad += _default(folder, "the torn golden is taken for the newest")
    if out.exists() and (bad or operation.out not in ("night", CORROBORATED)):
        return bad
    again = child.run(operation.arguments, folder, operation.seconds, False, None)
    broken = operation.name == "night" and again.code == INCONCLUSIVE  # a cell that broke keeps its result
    if again.code != code and not broken:
        said = (again.err.splitlines() or [""])[-1]
        bad.append((MISJUDGED, f"begun again it ends with {again.code}: {said}"))
    elif again.code == code:
        bad += _done(operation, work)
    if left := leftovers(folder):
        bad.append((LEFT, f"after the next one: {left[0]}"))
    return bad


def _done(operation: Operation, work: Path) -> Bad:
    """What is missing of what a command did that ends as it does when nobody disturbs it."""
    try:
        operation.done(work / operation.out)
    except Exception as error:
        return [(LOST, f"it says that it is done, and it is not: {type(error).__name__}: {error}")]
    return []


def _whole(operation: Operation, out: Path) -> Bad:
    try:
        operation.whole(out)
    except Exception as error:
        return [(LOST, f"{operation.out} is there and not whole: {type(error).__name__}: {error}")]
    return []


def _default(folder: Path, said: str) -> Bad:
    ended = child.run(("diff", "run"), folder, 30, False, None)
    last = (ended.err.splitlines() or [""])[-1]  # the log holds the first command's words as well
    apart = "no golden of a whole case" in last and "partial" not in last  # the small golden holds some stages
    return [] if ended.code == 0 or apart else [(LOST, f"{said}: exit {ended.code}")]


def leftovers(folder: Path) -> list[str]:
    """Files and folders of an attempt, temporary ones too, under the names that belong to what is not whole yet."""
    found = (path for part in ("work", "tmp") for path in (folder / part).rglob("*"))
    return [str(path.relative_to(folder)) for path in found if "partial" in path.name or path.name.endswith(".tmp")]


def _files(work: Path) -> dict[str, bytes]:
    return {str(path.relative_to(work)): path.read_bytes() for path in work.rglob("*") if path.is_file()}


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
