"""What it costs to be watched: processor time of speculative decoding under a tap that looks at nothing, over nobody's.

    python benchmarks/watched.py [--repeats 5] [--tokens 32] [--engine xla --engine numpy]

The tiny pair, K = 4, bfloat16, two chat prompts, one thread; the two take turns, and each ratio is within its turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from time import process_time

HOUSE = Path(__file__).resolve().parents[1]
sys.path[0] = str(HOUSE)  # or this file would be found under the package's name
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC"):
    os.environ.setdefault(name, "1")

from parity.bench import read_workload  # noqa: E402
from parity.bundled import tiny  # noqa: E402
from parity.factories import Factory  # noqa: E402
from parity.rounds import untapped  # noqa: E402
from parity.seam import UNWATCHED, Device, Tap  # noqa: E402

K = 4


def seconds(device: Device, ids: list[int], budget: int, tap: Tap) -> float:
    """Processor seconds of the rounds behind one prefill."""
    count = 1
    device.prefill(ids, budget, tap)
    began = process_time()
    while count < budget:
        drafts = device.draft(tap)
        fresh = device.commit(drafts, device.verify(drafts, tap), tap)
        count += len(fresh)
        if fresh[-1] in device.describe().eos:
            break
    return process_time() - began


def main() -> None:
    """One untimed turn, then the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--engine", choices=("xla", "numpy"), action="append")
    options = parser.parse_args()
    pair = tiny("target"), tiny("drafter")
    prompts = read_workload(tiny("prompts/chat.jsonl"), pair, first=2).prompts.values()
    for engine in options.engine or ["xla", "numpy"]:
        device, ratios = Factory(engine, *pair, K)("bfloat16", k=K), []
        for _ in range(options.repeats + 1):
            taken = [sum(seconds(device, ids, options.tokens, tap) for ids in prompts) for tap in (untapped, UNWATCHED)]
            ratios.append(taken[0] / taken[1])
        kept = ratios[1:]
        print(f"{engine:8s} {statistics.median(kept):.2f}x ({min(kept):.2f} to {max(kept):.2f}) the time, watched")


if __name__ == "__main__":
    main()
