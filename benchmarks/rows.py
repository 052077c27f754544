"""From how many rows on XLA adds a row's products in another order, and at which K five sequences in a round meet that.

    python benchmarks/rows.py [--rows 60] [--k 5 --k 6] [--prompts 5] [--tokens 24]

First each product of the tiny pair over 1, 2, ... rows, float32 sums as the kernels have them: the numbers of rows at
which the first row's bits are others than with one row fewer. Then the prompts through the asynchronous loop alone and
all in one round, every pass as wide as the caches: whether their texts, their rounds, and the committed rows of their
caches are the same, bit for bit, beside the rows of the largest pass.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

HOUSE = Path(__file__).resolve().parents[1]
sys.path[0] = str(HOUSE)  # or this file would be found under the package's name
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("NPROC", os.environ["OMP_NUM_THREADS"])  # XLA's threads

import numpy as np  # noqa: E402

from parity import device  # noqa: E402
from parity.bench.pair import with_room  # noqa: E402
from parity.device.kernels.linear import wide_linear  # noqa: E402
from parity.device.kernels.program import program  # noqa: E402
from parity.producers import read_prompts  # noqa: E402

TINY = HOUSE / "fixtures" / "tiny"
ROWS = 320


def products(pipeline: Any, most: int) -> Iterator[tuple[str, list[int]]]:
    """Of every shape of weights the numbers of rows at which the first row's bits change."""
    product, seen = program(wide_linear), set()
    models = {"target": pipeline.target, "drafter": pipeline.drafter}
    named = [
        (f"{side} {name}", weight)
        for side, model in models.items()
        for weights in (*model.layers[:2], {"head": model.outer["head"]})
        for name, weight in weights.items()
        if weight.ndim > 1 and not name.endswith("bias")
    ]
    for name, weight in named:
        if weight.shape in seen:
            continue
        seen.add(weight.shape)
        x = np.random.default_rng(0).standard_normal((1, most, weight.shape[-2])).astype(np.float32)
        engine = pipeline.engine
        first = [
            engine.host(product(engine.array(x[:, :rows], pipeline.target.dtype), weight))[..., 0, :]
            for rows in range(1, most + 1)
        ]
        pairs = enumerate(pairwise(first), 2)
        yield f"{name} {list(weight.shape)}", [rows for rows, (one, more) in pairs if not np.array_equal(one, more)]


def together(k: int, count: int, tokens: int) -> str:
    """The prompts alone and in one round."""
    with tempfile.TemporaryDirectory() as folder:
        pair, _ = with_room((TINY / "target", TINY / "drafter"), 0, k, Path(folder))
        loop = device.load(*pair, k, "bfloat16", "xla", loop="asynchronous", chunk=2, max_positions=ROWS)
        every = [list(ids) for _, ids in read_prompts(TINY / "prompts/chat.jsonl", *pair)]
    prompts = [ids for ids in every if len(ids) + tokens + k <= ROWS][:count]
    for model in (loop.pipeline.target, loop.pipeline.drafter):
        model.span_bucket = ROWS
    alone = [(loop.generate(ids, tokens), caches(loop.pipeline)) for ids in prompts]
    runs = loop.generate_together(prompts, [tokens] * len(prompts))
    held = [caches(lane) for lane in loop.lanes]
    texts = all(run.tokens == own.tokens for run, (own, _) in zip(runs, alone, strict=True))
    rounds = all(run == own for run, (own, _) in zip(runs, alone, strict=True))
    same = rounds and all(
        np.array_equal(a, b) for one, (_, own) in zip(held, alone, strict=True) for a, b in zip(one, own, strict=True)
    )
    largest = f"{len(prompts) * 2 * k} rows of the drafter, {len(prompts) * (k + 1)} of the target"
    return f"K = {k}, {largest}: texts {said(texts)}, rounds {said(rounds)}, caches {said(same)}"


def caches(pipeline: Any) -> list[np.ndarray]:
    """The committed rows of every cache."""
    models = pipeline.target, pipeline.drafter
    return [pipeline.engine.host(one)[:, : model.length] for model in models for pair in model.caches for one in pair]


def said(same: bool) -> str:
    """In words."""
    return "the same" if same else "others"


def main() -> None:
    """Products, then rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--k", type=int, action="append")
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=24)
    options = parser.parse_args()
    pipeline = device.load(TINY / "target", TINY / "drafter", 4, "bfloat16", "xla")
    for name, changes in products(pipeline, options.rows):
        print(f"{name}: {', '.join(map(str, changes)) or 'never'}", flush=True)
    for k in options.k or (5, 6):
        print(together(k, options.prompts, options.tokens), flush=True)


if __name__ == "__main__":
    main()
