"""What a golden of real width costs: the checkpoint written, and dumped with its weights left in their files.

    python benchmarks/real_size.py FOLDER [--model 20b] [--layers 2] [--prompts 4] [--tokens 64] [--rounds 8]
        [--memory 0.5] [--batch 4] [--threads 2]

Each step is a process of its own: seconds, processor seconds, and the most memory that was resident (mapped pages of
the weights' files included). Random weights accept next to no draft, so that a round emits one token. What it takes on
disk: 6.5 GB for two layers of 20b with its drafter, and the golden. What is in FOLDER already is taken up.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[1]


def step(name: str, *command: object) -> None:
    """Run a command, print what it took."""
    begun = time.monotonic()
    process = subprocess.Popen([sys.executable, *map(str, command)], cwd=HOUSE, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds, processor = time.monotonic() - begun, used.ru_utime + used.ru_stime
    print(
        f"{name:12s}{seconds:9.1f} s{processor:10.1f} s of processor{used.ru_maxrss / 2**20:8.2f} GiB resident",
        flush=True,
    )
    if status:
        raise SystemExit(f"{name}: ended with {os.waitstatus_to_exitcode(status)}")


def main() -> None:
    """Write and dump."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="20b")
    for name, default in (("layers", 2), ("prompts", 4), ("batch", 4), ("tokens", 64), ("rounds", 8), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--memory", type=float, default=0.5)
    asked = parser.parse_args()
    pair, golden = asked.folder.resolve() / "pair", asked.folder.resolve() / "golden"
    if not pair.exists():
        recipe = ("-m", "parity.fixtures.recipe.real_shape", pair, "--model", asked.model, "--layers", asked.layers)
        step("checkpoint", *recipe, "--prompts", asked.prompts, "--tokens", asked.tokens)
    checkpoints = ("--target", pair / "target", "--drafter", pair / "drafter", "--prompts", pair / "prompts.jsonl")
    how = ("--reference", "plain", "--memory", asked.memory, "--batch", asked.batch, "--threads", asked.threads)
    case = ("-k", 3, "--max-new-tokens", asked.rounds + 1, "--out", golden)
    step("golden", "-m", "parity", "dump-golden", *checkpoints, *how, *case)
    size = sum(file.stat().st_size for file in golden.iterdir())
    print(f"golden      {size / 2**20:9.0f} MiB on disk")


if __name__ == "__main__":
    main()
