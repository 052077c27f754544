"""What `parity diagnose` says of clean devices: nothing at all is the goal.

    python benchmarks/clean_diagnoses.py [--count 100] [--from 0] [--gates] [--log FILE]

Every clean device that runs here (`parity.builders.clean_devices`: engines, and variants of rounding and padding) in
both precisions, each time over another golden: two chat prompts, drawn from the tiny pair's 24, 12 new tokens each.
Its local and its chained run are diagnosed, as `parity diagnose RUN` does; with `--gates` the device itself, by every
gate besides, as `parity diagnose --device` does: two minutes each. A line of JSON a run: what was told of it (a cause,
a condition, a part, a stage without an explanation), and what lacks evidence. A log that is there already is taken up.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

HOUSE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HOUSE))

from benchmarks.diagnosis import answered_by  # noqa: E402
from benchmarks.unseen.goldens import chat_lines, golden_of  # noqa: E402
from parity.api import diagnose_device, run_device  # noqa: E402
from parity.builders import clean_devices  # noqa: E402
from parity.compare.report import FAIL  # noqa: E402
from parity.diagnose.diagnosis import Diagnosis  # noqa: E402
from parity.diagnose.failing_run import MODES  # noqa: E402
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


def diagnosed(device: str, precision: str, lines: list[str], gates: bool) -> dict:
    """What a diagnosis says, over a golden of these prompts."""
    with TemporaryDirectory(prefix="parity-clean-") as folder:
        golden = golden_of(lines, 12, Path(folder))
        begun = time.process_time()
        if gates:
            found = [diagnose_device(golden, device, precision, limit=60)]
        else:
            runs = (run_device(golden, device, mode, precision, out=Path(folder) / mode) for mode in MODES)
            found = [diagnose_device(golden, device, precision, run=run, limit=60) for run in runs]
        return told(found) | {"seconds": round(time.process_time() - begun, 1)}


def told(found: list) -> dict:
    """What is said against the device, and what evidence lacks; both are empty where there is nothing to diagnose."""
    lacks = [list(one.evidence) for one in found if isinstance(one, Diagnosis) and one.verdict != FAIL]
    accused = [one for one in found if one is not None and getattr(one, "verdict", FAIL) == FAIL]
    return {"accused": [answered_by(one) for one in accused], "lacks": lacks}


def main() -> None:
    """Print a line each, then the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="I")
    parser.add_argument("--gates", action="store_true")
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    taken_up = options.log is not None and options.log.exists()
    said = [json.loads(line) for line in options.log.read_text().splitlines()] if taken_up else []
    done = {one["number"] for one in said}
    with TemporaryDirectory(prefix="parity-clean-") as folder:
        for number, device, precision, lines in drawn(options.count, Path(folder)):
            if number < options.first or number in done:
                continue
            prompts = [json.loads(line)["id"] for line in lines]
            one = dict(number=number, device=device, precision=precision, prompts=prompts)
            one |= diagnosed(device, precision, lines, options.gates)
            said.append(one)
            print(json.dumps(one), flush=True)
            if options.log:
                with options.log.open("a") as log:
                    log.write(json.dumps(one) + "\n")
    accused, lacking = (sum(bool(one[name]) for one in said) for name in ("accused", "lacks"))
    print(f"{len(said)} clean runs: something said against {accused}, evidence lacks in {lacking}")


if __name__ == "__main__":
    main()
