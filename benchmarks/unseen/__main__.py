"""What a comparison and a diagnosis make of faults that neither was written for.

    python -m benchmarks.unseen [--set N] [--only ID ...] [--every N --from I] [--golden DIR | --prompts N] [--limit 60]
                               [--show VIEW] [--log FILE]
    python -m benchmarks.unseen --list | --check [...]

Plants every fault in turn, compares the device locally, and diagnoses it as `parity diagnose` does, over a golden of
two chat prompts, 12 new tokens each, or with `--prompts 8` of eight, 24 each: a condition takes rows to be told. A
line of JSON a fault: its truth, written down before any diagnosis, and the first answer. A log that is there already
is taken up: faults in it are not run again. `--check` compares only, the right device before and after them; of a
fault that no local comparison fails it says what a chained one says. Whether an answer is right is judged by reading.
Seconds, the limit among them, are the processor's.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.diagnosis import answered_by
from benchmarks.unseen import FAULTS
from benchmarks.unseen.goldens import wide_golden
from parity.api import diagnose_device, open_golden
from parity.builders import builder
from parity.compare import compare
from parity.diagnose import clock
from parity.drive import run_device
from parity.golden.store import Dump
from parity.oracles import ReferenceRerun
from parity.policy import read_policy
from parity.progress import quiet
from parity.run_request import RunRequest


def compared(golden, name: str, precision: str, mode: str = "local") -> dict:
    """What `parity diff` says of a device: its verdict, the first stage, and what failing rows have in common."""
    begun = time.process_time()
    with TemporaryDirectory(prefix="parity-unseen-") as folder:
        device = builder(name, golden)(precision=precision)
        run = Dump(run_device(RunRequest(device, golden, mode, (), Path(folder) / "run")))
        report = compare(golden, run, read_policy(None, precision), rerun=ReferenceRerun(quiet))
    relations = {each.stage: each.relation for each in report.stages if each.verdict == "fail"}
    first = report.first
    return {
        "verdict": report.verdict,
        "first": str(first or ""),
        "diff": relations.get(first.stage, "") if first else "",
        "failing": relations,
        "findings": [str(finding) for finding in report.findings],
        "diff_seconds": round(time.process_time() - begun, 1),
    }


def diagnosed(golden, name: str, precision: str, limit: float) -> dict:
    """What `parity diagnose` says of it."""
    begun = time.process_time()
    found = diagnose_device(golden, name, precision, limit=limit)
    seconds = round(time.process_time() - begun, 1)
    return answered_by(found) | {"seconds": seconds}


def tried(action, *arguments) -> dict:
    """What it says, or how it broke down."""
    try:
        return action(*arguments)
    except Exception as error:
        return {"verdict": "broke down", "error": f"{type(error).__name__}: {error}"}


def answered(golden, fault, options) -> dict:
    """All that is said of one fault."""
    name = f"benchmarks.unseen:device,fault={fault.id}" + (f",show={options.show}" if options.show else "")
    said = fault.truth | tried(compared, golden, name, fault.precision)
    if not options.check:
        found = tried(diagnosed, golden, name, fault.precision, options.limit)
        return said | ({"diagnosis_error": found["error"]} if "error" in found else found)
    if said["verdict"] != "fail":
        said["chained"] = tried(compared, golden, name, fault.precision, "chained")
    return said


def chosen(options) -> list:
    """The faults that are asked for and not in the log."""
    unknown = set(options.only or ()) - set(FAULTS)
    if unknown:
        raise SystemExit(f"{', '.join(sorted(unknown))}: no such unseen fault; --list names them")
    faults = [FAULTS[one] for one in options.only or FAULTS]
    faults = [fault for fault in faults if options.set in (None, fault.number)][options.first :: options.every]
    done = set()
    if options.log and options.log.exists():
        done = {json.loads(line)["id"] for line in options.log.read_text().splitlines()}
    return [fault for fault in faults if fault.id not in done]


def line(said: dict) -> str:
    """One fault for the reader."""
    due = "" if said.get("first", "").split(",")[0] == said["stage"] else f" (due {said['stage']})"
    told = f"{said['id']}: {said['verdict']} {said.get('first', '')}{due} {said.get('error', '')}"
    told += f"\n    diff: {said.get('diff', '')}\n    truth: {said['words'] or 'always'}; {said['component']}"
    if "chained" in said:
        told += f"\n    chained: {said['chained']['verdict']} {said['chained'].get('first', '')}"
    if "answers" in said:
        told += f"\n    {said['seconds']} s {said['answers'][:3]} {said['components'][:3]} {said['unexplained']}"
    return told + (f"\n    {said['diagnosis_error']}" if "diagnosis_error" in said else "")


def run(golden, faults: list, options) -> None:
    """A line of each, printed and logged as it comes."""
    killed = 0
    for fault in faults:
        said = answered(golden, fault, options)
        killed += said["verdict"] == "fail"
        print(line(said), flush=True)
        if options.log:
            with options.log.open("a") as log:
                log.write(json.dumps(said) + "\n")
    print(f"{len(faults)} faults: {killed} killed by a local comparison")


def main() -> None:
    """Read the options; one golden for all faults."""
    parser = argparse.ArgumentParser(prog="benchmarks.unseen", description=__doc__.splitlines()[0])
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--prompts", type=int, default=2, metavar="N")
    parser.add_argument("--only", nargs="+", metavar="ID")
    parser.add_argument("--set", type=int, choices=sorted({fault.number for fault in FAULTS.values()}), metavar="N")
    parser.add_argument("--every", type=int, default=1, metavar="N")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="I")
    parser.add_argument("--limit", type=float, default=60)
    parser.add_argument("--show", default="", metavar="VIEW", help="as in `--device numpy,show=VIEW`")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--list", action="store_true", help="the faults and their truths alone")
    parser.add_argument("--check", action="store_true", help="comparisons alone")
    options = parser.parse_args()
    clock.monotonic = time.process_time
    faults = chosen(options)
    if options.list:
        print("\n".join(json.dumps(fault.truth) for fault in faults))
        return
    with TemporaryDirectory(prefix="parity-unseen-") as folder:
        golden = open_golden(options.golden) if options.golden else wide_golden(Path(folder), options.prompts)
        if options.check:
            print("clean before:", compared(golden, "numpy", "bfloat16")["verdict"])
        run(golden, faults, options)
        if options.check:
            print("clean after:", *(compared(golden, "numpy", one)["verdict"] for one in ("bfloat16", "float32")))


if __name__ == "__main__":
    main()
