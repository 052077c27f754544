"""What decoding behind a long prompt costs: its programs, its prefill, and each verb of a round, in processor time.

    python benchmarks/long_context.py [--context 8192] [--rows 512] [--engine xla] [--k 4] [--rounds 12]

One prompt of the tiny pair, lengthened as `parity bench` does it; its config is given the room. What is accepted there
says nothing of a model that was trained for it, so that costs alone are printed. The first prefill compiles: what it
takes beyond the second one is said apart. Verbs are medians over the rounds behind the second prefill, a plain step is
`verify` without drafts and `commit`. A bench of one prompt, one K and two repeats on one device prefills twelve times:
plain decoding in one call and its budget of one token, plain decoding by verbs and speculation, each once to warm up.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

HOUSE = Path(__file__).resolve().parents[1]
sys.path[0] = str(HOUSE)  # or this file would be found under the package's name
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("NPROC", os.environ["OMP_NUM_THREADS"])  # XLA's threads

from parity import device  # noqa: E402
from parity.bench.pair import with_room  # noqa: E402
from parity.bench.workload import read_workload  # noqa: E402
from parity.seam import UNWATCHED  # noqa: E402

TINY = HOUSE / "fixtures" / "tiny"


def loaded(options: argparse.Namespace, folder: Path) -> tuple[Any, list[int]]:
    """A device with room for the context, and a prompt of that many positions."""
    tokens = (2 * options.rounds + 2) * (options.k + 1)
    room = options.context + tokens + options.k
    pair, _ = with_room((TINY / "target", TINY / "drafter"), room, options.k, folder)
    prompts = read_workload(TINY / "prompts/chat.jsonl", pair, first=1).lengthened(options.context).prompts
    made = device.load(*pair, options.k, "bfloat16", options.engine, max_positions=room, prefill_rows=options.rows)
    return made, next(iter(prompts.values()))


def seconds(run: Callable[[], Any], made: Any) -> tuple[Any, float]:
    """What a call returns, and its processor time until all of it has run."""
    began = time.process_time()
    result = run()
    made.synchronize()
    return result, time.process_time() - began


def rounds(made: Any, count: int) -> dict[str, float]:
    """Milliseconds of each verb of a round and of a plain step, medians."""
    took: dict[str, list[float]] = {"plain step": [], "draft": [], "verify": [], "commit": []}
    for _ in range(count):
        drafts, draft = seconds(lambda: made.draft(UNWATCHED), made)
        chosen, verify = seconds(lambda drafts=drafts: made.verify(drafts, UNWATCHED), made)
        _, commit = seconds(lambda pair=(drafts, chosen): made.commit(*pair, UNWATCHED), made)
        for name, one in (("draft", draft), ("verify", verify), ("commit", commit)):
            took[name].append(one)
    for _ in range(count):
        none, step = seconds(lambda: made.verify([], UNWATCHED), made)
        _, commit = seconds(lambda none=none: made.commit([], none, UNWATCHED), made)
        took["plain step"].append(step + commit)
    return {name: 1000 * median(some[1:]) for name, some in took.items()}


def main() -> None:
    """Two prefills, then rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--engine", choices=tuple(device.ENGINES), default="xla")
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made, ids = loaded(options, Path(folder))
    budget = (2 * options.rounds + 2) * (options.k + 1)
    _, first = seconds(lambda: made.prefill(ids, budget, UNWATCHED), made)
    _, second = seconds(lambda: made.prefill(ids, budget, UNWATCHED), made)
    programs = getattr(getattr(made.engine, "programs", None), "compiled", 0)
    print(f"{options.engine}, {len(ids)} positions, {options.rows} rows at a time, K = {options.k}")
    print(f"prefill {second:.1f} s; the first one {first - second:.1f} s more, for {programs} programs")
    costs = rounds(made, options.rounds)
    print(", ".join(f"{name} {one:.1f} ms" for name, one in costs.items()))
    whole = costs["draft"] + costs["verify"] + costs["commit"]
    print(f"a round takes {whole / costs['plain step']:.2f} plain steps: with more tokens than that it pays")


if __name__ == "__main__":
    main()
