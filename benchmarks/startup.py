"""How long the command line takes to start: against `python -c 'import numpy'`.

    python benchmarks/startup.py [--golden DIR --run DIR] [--repeats 9] [--before CHECKOUT]

Prints `parity --help` (goal: at most 2x) and `parity diff` of two small dumps (goal: at most 6x), the
commands alternating, the median of each; with --before those of another checkout beside them. Without
`--golden` and `--run` it makes both dumps first: one prompt of the tiny pair, 8 tokens, every stage; that
part needs torch, the measured commands do not. Byte code is kept between the runs, as an installed package has it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[1]
PROMPT = {"messages": [{"role": "user", "content": "What is a list?"}]}


def parity(*arguments: object) -> list[str]:
    """The command line of a `parity` verb."""
    return [sys.executable, "-m", "parity", *map(str, arguments)]


def small_dumps(folder: Path) -> tuple[Path, Path]:
    """A golden of one prompt, and a run of the numpy device held to it."""
    prompts, golden, run = folder / "prompts.jsonl", folder / "golden", folder / "run"
    prompts.write_text(json.dumps(PROMPT) + "\n")
    make = parity("dump-golden", "--prompts", prompts, "--max-new-tokens", 8, "--out", golden)
    for command in (make, parity("run", "--golden", golden, "--out", run)):
        subprocess.run(command, cwd=HOUSE, check=True, capture_output=True)
    return golden, run


def seconds(command: list[str], house: Path) -> tuple[float, float]:
    """Wall and processor time of a checkout's command that must end in a verdict: exit code 0, 1 or 3."""
    environment = os.environ | {"PYTHONPATH": str(house), "PYTHONDONTWRITEBYTECODE": ""}
    start, spent = time.perf_counter(), processor()
    done = subprocess.run(command, cwd=house, env=environment, capture_output=True, text=True)
    taken = time.perf_counter() - start, processor() - spent
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    return taken


def processor() -> float:
    """Processor seconds of all ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def report(commands: dict[str, tuple[list[str], float, Path]], repeats: int) -> None:
    """Time the commands in turn; print the median of each, over the first's.

    The processor ratio stands beside the wall ratio because it barely moves when the machine is shared.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(repeats + 1):
        for name, (command, _goal, house) in commands.items():
            times[name].append(seconds(command, house))
    medians = {
        name: [statistics.median(kind) for kind in zip(*values[1:], strict=True)] for name, values in times.items()
    }
    wall_base, processor_base = next(iter(medians.values()))
    for name, (_command, goal, _house) in commands.items():
        wall, spent = medians[name]
        ratios = f"{wall / wall_base:5.2f}x wall {spent / processor_base:5.2f}x processor"
        print(f"{name:34s} {wall * 1e3:6.0f} ms {ratios} (goal {goal:g}x)")


def size(folder: Path) -> str:
    """Size of a dump, for the record."""
    return f"{sum(path.stat().st_size for path in folder.iterdir()) / 2**20:.1f} MiB"


def main() -> None:
    """Make or take two dumps, time the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="parity-startup-") as name:
        golden, run = options.golden, options.run
        if not (golden and run):
            golden, run = small_dumps(Path(name))
        print(f"golden {size(golden)}, run {size(run)}")
        measured = {
            "parity --help": (parity("--help"), 2.0),
            "parity diff RUN --golden G": (parity("diff", run.resolve(), "--golden", golden.resolve()), 6.0),
        }
        commands = {"python -c 'import numpy'": ([sys.executable, "-c", "import numpy"], 1.0, HOUSE)}
        houses = {"": HOUSE} | ({" before": options.before.resolve()} if options.before else {})
        for name, (command, goal) in measured.items():
            commands |= {f"{name}{when}": (command, goal, house) for when, house in houses.items()}
        report(commands, options.repeats)


if __name__ == "__main__":
    main()
