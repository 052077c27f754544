"""`python -m tests.mutants`: record which tests reach which line, mutate a sample, run the tests that reach it."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.mutants.sample import modules, sampled
from tests.mutants.selection import STARTUP, Reach

ROOT = Path(__file__).parents[2]
COPIED = ("parity", "references", "device", "fixtures", "reports", "tests", "benchmarks", "docs")
FILES = (
    "conftest.py",
    "pyproject.toml",
    "constraints.txt",
    "requirements.lock",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
)
UNTRACED = "tests/process/test_endings.py"
"""Its devices raise out of a trace function: coverage never lets go of its lock."""

LEFT_OUT = 0.005
"""Of all tests, those that may be red without a mutant, as where a copy of the sources is no clone."""

OPTIONS = "-q -x -p no:cacheprovider -p tests.mutants.recorder"


def main() -> int:
    """Judge a sample; 0 where enough of it is killed."""
    options = _options()
    work = options.work.resolve()
    tree, record = work / "tree", work / "record"
    if options.record or not (record / "costs.json").exists():
        _record(tree, record, options.tests)
    os.chdir(tree)
    os.environ |= {"PYTHONPATH": str(tree), "MUTANTS_GOLDENS": str(work / "goldens"), "PYTHONDONTWRITEBYTECODE": "1"}
    return _judge(options, work, Reach(record, tree), tree)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Mutation testing of a sample of the core."
    )
    parser.add_argument("--sample", type=int, default=30, help="mutants to judge, those judged before included")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only mutants of files whose path holds this")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests against a mutant at the most")
    parser.add_argument("--again", action="store_true", help="judge survivors once more, as by a larger --budget")
    parser.add_argument("--least", type=float, default=0.85, help="share that has to be killed")
    parser.add_argument(
        "--record", action="store_true", help="copy the sources and record contexts anew; judged mutants are forgotten"
    )
    parser.add_argument("--tests", nargs="*", default=["tests"], help="with --record: tests that may be chosen")
    parser.add_argument("--work", type=Path, default=Path("build/mutants"))
    return parser.parse_args()


def _record(tree: Path, record: Path, tests: list[str]) -> None:
    """A copy of the sources, and one run of the tests over it under coverage, a context a test.

    A test that is red without a mutant would kill every one: it is left out, and many such tests end the recording.
    """
    for folder in (tree, record):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    (record.parent / "session.sqlite").unlink(missing_ok=True)
    for part in COPIED:
        left = shutil.ignore_patterns("__pycache__", "node_modules")
        shutil.copytree(ROOT / part, tree / part, symlinks=True, ignore=left)
    for file in FILES:
        shutil.copy(ROOT / file, tree / file)
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "MUTANTS_RECORD": str(record),
        "MUTANTS_GOLDENS": str(record.parent / "goldens"),
    }
    shutil.rmtree(record.parent / "goldens", ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "coverage",
        "run",
        "--rcfile=/dev/null",
        "--branch",
        "--source=parity",
        f"--data-file={record / '.coverage'}",
    ]
    command += ["-m", "pytest", *shlex.split(OPTIONS.replace("-x ", "")), f"--ignore={UNTRACED}", *tests]
    begun = time.monotonic()
    log = record / "pytest.log"
    with log.open("w") as file:
        ended = subprocess.run(command, cwd=tree, env=environment, stdout=file, stderr=subprocess.STDOUT)
    last = next(reversed(log.read_text().splitlines()), "nothing was printed")
    known = json.loads((record / "costs.json").read_text()) if (record / "costs.json").exists() else {}
    red, green = known.get("red", []), known.get("tests", {})
    if ended.returncode not in (0, 1) or len(red) > LEFT_OUT * len(green):
        (record / "costs.json").unlink(missing_ok=True)  # or the next call would go on with it
        raise SystemExit(f"the recording is not green without a mutant, so nothing is judged: {last}; see {log}")
    for test in red:
        print(f"left out, red without a mutant: {test}")
    print(f"recorded {', '.join(tests)} in {time.monotonic() - begun:.0f} s: {last}", flush=True)


def _judge(options, work: Path, reach: Reach, tree: Path) -> int:
    """The first of the sample that are not judged yet; the summary of all that are."""
    from cosmic_ray.commands import init
    from cosmic_ray.work_db import WorkDB, use_db

    path, partial = work / "session.sqlite", work / "session.partial"
    if not path.exists():
        partial.unlink(missing_ok=True)
        with use_db(str(partial), WorkDB.Mode.create) as work_db:
            init(modules(tree), work_db, {})
        partial.rename(path)
    with use_db(str(path), WorkDB.Mode.open) as work_db:
        chosen = [
            one
            for one in sampled(work_db.work_items, options.seed, tree)
            if options.only in str(one.mutations[0].module_path)
        ]
        done = {item.job_id: result for item, result in work_db.completed_work_items}
        judged = []
        for item in chosen:
            if len(judged) == options.sample:
                break
            again = options.again and item.job_id in done and not done[item.job_id].is_killed
            if again or item.job_id not in done:
                done[item.job_id] = _one(item, reach, options.budget)
                work_db.set_result(item.job_id, done[item.job_id])
            if done[item.job_id].test_outcome is not None:  # cosmic-ray lists a few places that it cannot change
                judged.append((item, done[item.job_id]))
        return _summary(judged, work, options.least)


def _one(item, reach: Reach, budget: float):
    """One mutant against the tests that reach it."""
    from cosmic_ray.mutating import mutate_and_test
    from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkResult

    place = item.mutations[0]
    tests, cost = reach.tests(place.module_path, place.start_pos[0], place.end_pos[0], budget)
    begun = time.monotonic()
    if tests:
        result = mutate_and_test(
            item.mutations, f"{sys.executable} -m pytest {OPTIONS} {shlex.join(tests)}", STARTUP + 30 + 5 * cost
        )
    else:
        result = WorkResult(WorkerOutcome.NORMAL, "no test reaches it", TestOutcome.SURVIVED, "")
    said = f"{place.module_path}:{place.start_pos[0]} {place.operator_name.removeprefix('core/')}"
    outcome, seconds = (result.test_outcome or result.worker_outcome).value, time.monotonic() - begun
    print(f"{outcome}: {said} ({len(tests)} tests, {seconds:.0f} s)", flush=True)
    return result


def _summary(results, work: Path, least: float) -> int:
    """The share that is killed, with Wilson's interval; survivors go into a file."""
    from scipy.stats import binomtest

    survivors = [(item, result) for item, result in results if not result.is_killed]
    killed = len(results) - len(survivors)
    share = binomtest(killed, len(results)).proportion_ci(method="wilson")
    with (work / "survivors.diff").open("w") as file:
        for item, result in survivors:
            place = item.mutations[0]
            file.write(
                f"# {place.module_path}:{place.start_pos[0]} {place.operator_name}\n{result.diff or result.output}\n\n"
            )
    interval = f"95 %: {share.low:.1%} to {share.high:.1%}"
    print(f"{killed} of {len(results)} mutants killed: {killed / len(results):.1%} ({interval})")
    print(f"{len(survivors)} survivors in {work / 'survivors.diff'}")
    return int(killed / len(results) < least)


if __name__ == "__main__":
    sys.exit(main())
