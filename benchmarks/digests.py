"""What it costs to open a golden whose checkpoints are large: their digests are taken once, not per command.

    python benchmarks/digests.py GOLDEN [--repeats 5]

GOLDEN is one whose checkpoints lie where it says, such as that of `benchmarks/real_size.py`. Each opening is a process
of its own, from its start to the golden that may judge. The first has an empty home (`PARITY_HOME`) and reads every
byte of both checkpoints; those after it are timed in turn with a golden of the tiny pair: medians, and the difference
(goal: at most 2 s). Where the page cache holds the files the first one is faster; the others read files below 64 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

HOUSE = Path(__file__).resolve().parents[1]
OPEN = "import sys; from parity import open_golden; open_golden(sys.argv[1])"
PROMPT = {"messages": [{"role": "user", "content": "What is a list?"}]}
GOAL = 2.0


def opened(golden: Path, home: Path) -> tuple[float, float]:
    """Wall and processor seconds of a process that opens this golden and ends."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | {"PARITY_HOME": str(home)}
    subprocess.run([sys.executable, "-c", OPEN, str(golden)], cwd=HOUSE, env=environment, check=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def tiny_golden(folder: Path) -> Path:
    """A golden of one prompt of the tiny pair, 4 tokens."""
    prompts, golden = folder / "prompts.jsonl", folder / "golden"
    prompts.write_text(json.dumps(PROMPT) + "\n")
    command = "-m", "parity", "dump-golden", "--prompts", prompts, "--max-new-tokens", 4, "--out", golden
    subprocess.run([sys.executable, *map(str, command)], cwd=HOUSE, check=True, stdout=subprocess.DEVNULL)
    return golden


def weights(golden: Path) -> int:
    """Bytes of the checkpoints' files of weights."""
    manifest = json.loads((golden / "manifest.json").read_bytes())
    folders = [Path(manifest["model"][side]["path"]) for side in ("target", "drafter")]
    return sum(file.stat().st_size for folder in folders for file in folder.glob("*.safetensors"))


def main() -> None:
    """Once with an empty home, then in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("golden", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    with TemporaryDirectory() as folder:
        goldens = {"tiny": tiny_golden(Path(folder)), "large": asked.golden.resolve()}
        home = Path(folder, "home")
        wall, spent = opened(goldens["large"], home)
        size = weights(asked.golden) / 2**30
        print(f"first opening, {size:.2f} GiB of weights: {wall:.1f} s, {spent:.1f} s of processor", flush=True)
        opened(goldens["tiny"], home)
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in goldens}
        for _ in range(asked.repeats):
            for name, golden in goldens.items():
                took[name].append(opened(golden, home))
    middle = {name: [statistics.median(kind) for kind in zip(*taken, strict=True)] for name, taken in took.items()}
    for name, (wall, spent) in middle.items():
        print(f"after it, {name}: {wall:.2f} s, {spent:.2f} s of processor")
    more = middle["large"][0] - middle["tiny"][0]
    print(f"difference: {more:.2f} s (goal: at most {GOAL:g} s)")
    raise SystemExit(more > GOAL)


if __name__ == "__main__":
    main()
