"""Several commands at once that write the same folder, the same file, the same history, the same home."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from tests.torture import child
from tests.torture.attempts import ANY, BROKEN, HANG, LEFT, LOST, MISJUDGED, TRACEBACK, Attack, Attempt, Bad
from tests.torture.bases import Bases
from tests.torture.child import Ended
from tests.torture.kills import leftovers
from tests.torture.operations import OPERATIONS, Operation

SHARED = {operation.name: operation for operation in OPERATIONS if operation.name not in ("night", "dump")}
ONE_WINS = ("run", "import", "import of a golden", "export")
"""Who refuses what is there: of several at once one writes it, the others say that it exists."""
ONCE_MORE = replace(
    SHARED["run"],
    name="run into home",
    arguments=("run", "--device", "tests.torture.replay:load", "--golden", "golden"),
    out="home/runs",
)


def attack(bases: Bases) -> Attack:
    """Every operation, two to four at once."""
    operations = [*SHARED.values(), ONCE_MORE]
    os.environ["TORTURE_RUN"] = str(bases.real / "run")

    def prepare(number: int, rng: Random, folder: Path) -> Attempt:
        operation, many = operations[number % len(operations)], rng.randrange(1, 4)
        work = operation.lay_out(bases, folder)
        others: list[int] = []

        def begin() -> None:
            others.extend(child.start(operation.arguments, folder, f"other{place}") for place in range(many))

        def after(ended: Ended) -> Bad:
            return _checked(operation, work, folder, ended, others)

        begin()
        return Attempt(
            f"{operation.name}, {many + 1} at once", ANY, operation.arguments, after, seconds=60.0, runs_code=True
        )

    return Attack("writers", len(operations) * 10, prepare, len(operations) * 2)


def _checked(operation: Operation, work: Path, folder: Path, ended: Ended, others: Sequence[int]) -> Bad:
    """Everybody ended with a sentence or a result, one result is there, and it is whole."""
    bad: Bad = []
    codes = [ended.code]
    for place, process in enumerate(others):
        code, hang = child.wait(process, operation.seconds)
        said = (folder / f"other{place}.err.log").read_bytes().decode(errors="replace")
        codes.append(code)
        bad += [(HANG, f"writer {place}")] if hang else []
        if found := BROKEN.search(said):
            bad.append((TRACEBACK, f"{found.group()}: {said.splitlines()[-1]}"))
    if operation.name in ONE_WINS and codes.count(0) != 1:
        bad.append((MISJUDGED, f"exit codes {codes}: one writes it, the others are refused"))
    made = list((work / operation.out).glob("*")) if operation is ONCE_MORE else [work / operation.out]
    if operation is ONCE_MORE and not codes.count(0) == len(codes) == len(made):
        bad.append((LOST, f"exit codes {codes}, {len(made)} runs"))
    try:
        for out in made:
            operation.whole(out)
    except Exception as error:
        bad.append((LOST, f"what they wrote is not whole: {type(error).__name__}: {error}"))
    if left := leftovers(folder):
        bad.append((LEFT, left[0]))
    return bad
