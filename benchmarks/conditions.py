"""How often `parity diagnose` names a planted fault together with the condition that it holds under.

    python benchmarks/conditions.py --seed N [--count 18] [--part 1/2] [--golden DIR | --prompts N] [--log FILE]
    python benchmarks/conditions.py --seed N [--count 18] --list

Draws faults under conditions from the device's catalogue (`parity.device.faults.conditional.drawn`), with `--count all`
every one that can hold under a condition, and diagnoses each device as the command does, within `--limit` seconds, over
a golden of two chat prompts, or of more (`benchmarks/unseen/goldens.py`). Counted are those that are killed, placed at
their stage, and named; where a sequence depends on what ran before it, by what explains that; where nothing is named,
by the part that `benchmarks/diagnosis.json` lists for the fault. Whether the condition is right, by the comparison and
by the diagnosis, is judged by reading what is printed: it is where it holds for the very rows of the golden that the
planted one holds for, whatever its words.
Seconds are the processor's.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

HOUSE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HOUSE))

from benchmarks.diagnosis import answered_by, names_by_part, says_the_same  # noqa: E402
from benchmarks.unseen.goldens import wide_golden  # noqa: E402
from parity.api import diagnose_device, open_golden  # noqa: E402
from parity.builders import builder  # noqa: E402
from parity.compare import compare  # noqa: E402
from parity.device.faults import CATALOGUE  # noqa: E402
from parity.device.faults.conditional import JOINT, drawn  # noqa: E402
from parity.diagnose import clock  # noqa: E402
from parity.diagnose.company import BEHIND  # noqa: E402
from parity.drive import run_device  # noqa: E402
from parity.errors import UsageError  # noqa: E402
from parity.golden.store import Dump  # noqa: E402
from parity.policy import read_policy  # noqa: E402
from parity.run_request import RunRequest  # noqa: E402

LATER = "prompt > 1"


def compared(golden, name: str, precision: str) -> dict:
    """What `parity diff --mode local` says of the device."""
    with TemporaryDirectory(prefix="parity-conditions-") as folder:
        device = builder(name, golden)(precision=precision)
        run = Dump(run_device(RunRequest(device, golden, "local", (), Path(folder) / "run")))
        report = compare(golden, run, read_policy(None, precision))
    first = report.first
    relation = next((each.relation for each in report.stages if first and each.stage == first.stage), "")
    return {"verdict": report.verdict, "first": str(first or ""), "diff": relation}


def answered(golden, fault, limit: float) -> dict:
    """What a comparison and a diagnosis say of one planted fault."""
    id, _, where = fault.id.partition(JOINT)
    name = f"parity.device.faults:only,fault={id},where={where}"
    seen = compared(golden, name, fault.precision)
    begun = time.process_time()
    found = diagnose_device(golden, name, fault.precision, limit=limit)
    seconds = round(time.process_time() - begun, 1)
    said = answered_by(found)
    return (
        seen
        | said
        | {
            "fault": fault.id,
            "due": fault.stage,
            "placed": seen["first"].split(",")[0] == fault.stage,
            "named": is_named(id, said, where),
            "seconds": seconds,
        }
    )


def plain(hypothesis: str) -> tuple[str, str]:
    """A hypothesis' id without its condition, and without a pass that is part of the id as well."""
    held = hypothesis.split(" only ")[0]
    return held, re.sub(r"-in-(verify|prefill)$", "", held)


def is_named(fault: str, said: dict, where: str) -> bool:
    """Whether any answer names a fault; where there is none, whether the first part does, as in `diagnosis.py`. What
    explains a dependence on another sequence does only for a fault of later prompts."""
    ids = [id for name, _ in said["answers"] for id in plain(name)]
    if BEHIND.id in ids and where != LATER:
        return False
    return any(says_the_same(fault, name) for name in ids) if ids else names_by_part(fault, said["components"])


def share(text: str) -> tuple[int, int]:
    """Which part of how many."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part I/N with I from 1 to N")
    return int(part), int(parts)


def number_or_all(text: str) -> int | None:
    """How many faults are drawn; None for as many as there are."""
    return None if text == "all" else int(text)


def main() -> None:
    """Print an answer a line, then the counts that need no reading."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=number_or_all, default=18, metavar="N|all")
    parser.add_argument(
        "--part", type=share, default=(1, 1), metavar="I/N", help="every N-th of them, from the I-th on"
    )
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--prompts", type=int, default=2, metavar="N")
    parser.add_argument("--limit", type=float, default=60)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--list", action="store_true", help="only what would be planted")
    options = parser.parse_args()
    clock.monotonic = time.process_time
    part, parts = options.part
    faults = drawn([*CATALOGUE.values()], options.count, options.seed)[part - 1 :: parts]
    if options.list:
        print("\n".join(fault.id for fault in faults))
        return
    made = []
    with TemporaryDirectory(prefix="parity-conditions-") as folder:
        golden = open_golden(options.golden) if options.golden else wide_golden(Path(folder), options.prompts)
        for fault in faults:
            try:
                one = answered(golden, fault, options.limit)
            except UsageError as refused:  # it changes how many rows a pass has
                print(f"{fault.id}\n    not planted: {refused}", flush=True)
                continue
            made.append(one)
            print(
                f"{one['fault']}\n    diff: {one['verdict']}, {one['first']}: {one['diff']}\n    ",
                f"{'named' if one['named'] else 'NOT'} {one['seconds']} s {one['answers'][:3]} {one['unexplained']}",
                flush=True,
            )
            if options.log:
                with options.log.open("a") as log:
                    log.write(json.dumps(one) + "\n")
    counts = {name: sum(bool(one[name]) for one in made) for name in ("placed", "named")}
    failed = sum(one["verdict"] == "fail" for one in made)
    print(f"{len(made)} faults: {failed} killed, {counts['placed']} placed, {counts['named']} named")


if __name__ == "__main__":
    main()
