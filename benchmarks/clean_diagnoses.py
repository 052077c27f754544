"""What `parity diagnose` says of devices that are clean: nothing at all is the goal.

    python benchmarks/clean_diagnoses.py [--count 100] [--from 0] [--log FILE]

Every clean device that runs here (`parity.builders.clean_devices`: engines, and variants of rounding and padding) in
both precisions, each time over another golden: two chat prompts, drawn from the tiny pair's 24, 12 new tokens each.
A diagnosis runs all stages, local and chained, and then every gate, as the command does. A line of JSON a run: what
failed, which condition or part was told, and what the gates say. A log that is there already is taken up.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

HOUSE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HOUSE))

from benchmarks.diagnosis import answered_by  # noqa: E402
from benchmarks.goldens import chat_lines, golden_of  # noqa: E402
from parity.api import diagnose_device  # noqa: E402
from parity.builders import clean_devices  # noqa: E402
from parity.fault_choice import small_golden  # noqa: E402

SEED = 20261128


def drawn(count: int, folder: Path) -> Iterator[tuple[int, str, str, list[str]]]:
    """(number, device, precision, prompts) of so many runs, each the next device in turn."""
    names = clean_devices(small_golden(folder))[0]
    lines = [*chat_lines().values()]
    chance = random.Random(SEED)
    for number in range(count):
        precision = ("bfloat16", "float32")[number // len(names) % 2]
        yield number, names[number % len(names)], precision, chance.sample(lines, 2)


def diagnosed(device: str, precision: str, lines: list[str]) -> dict:
    """What a diagnosis says, over a golden of these prompts."""
    with TemporaryDirectory(prefix="parity-clean-") as folder:
        golden = golden_of(lines, 12, Path(folder))
        begun = time.process_time()
        found = diagnose_device(golden, device, precision, limit=60)
        return answered_by(found) | {"clean": found is None, "seconds": round(time.process_time() - begun, 1)}


def main() -> None:
    """Print a line each, then the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="I")
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    said = (
        [json.loads(line) for line in options.log.read_text().splitlines()]
        if options.log and options.log.exists()
        else []
    )
    done = {one["number"] for one in said}
    with TemporaryDirectory(prefix="parity-clean-") as folder:
        for number, device, precision, lines in drawn(options.count, Path(folder)):
            if number < options.first or number in done:
                continue
            prompts = [json.loads(line)["id"] for line in lines]
            one = dict(number=number, device=device, precision=precision, prompts=prompts)
            one |= diagnosed(device, precision, lines)
            said.append(one)
            print(json.dumps(one), flush=True)
            if options.log:
                with options.log.open("a") as log:
                    log.write(json.dumps(one) + "\n")
    counts = Counter("nothing" if one["clean"] else "something" for one in said)
    print(f"{len(said)} clean runs: {counts['nothing']} with nothing to diagnose, {counts['something']} with something")


if __name__ == "__main__":
    main()
