"""The asynchronous loop over the synchronous one, and speculation over plain decoding of the same device, by K.

    python benchmarks/loops.py [--engine xla] [--drafter drafter] [--k 1 --k 4] [--prompts 5] [--tokens 48]

Each repetition runs both loops, speculating and plain, on every prompt, in an order that rotates; each ratio is taken
within its own repetition of its own prompt. Printed are the geometric mean over prompts of their medians, and the 95 %
interval of a bootstrap over prompts and repetitions. Prefill is part of every run. The best K is chosen by the odd
repetitions and judged by the even ones. `wall` is what a clock says; `cpu` is this process' own time, which another's
load moves less and which knows nothing of what overlaps. Loops that emit different tokens are an error; where
speculation parts from plain decoding, by a rounding of bfloat16, it is counted.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HOUSE = Path(__file__).resolve().parents[1]
sys.path[0] = str(HOUSE)  # or this file would be found under the package's name
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("NPROC", os.environ["OMP_NUM_THREADS"])  # XLA's threads

import numpy as np  # noqa: E402

from parity import device  # noqa: E402
from parity.device.decoding import Generation  # noqa: E402

TINY = HOUSE / "fixtures" / "tiny"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
RUNS = ("synchronous", "asynchronous", "synchronous plain", "asynchronous plain")
DRAWS = 2000
Times = dict[str, np.ndarray]
"""Of each run seconds a token [clocks, prompts, repetitions]."""


def prompts_of(kind: str, count: int, shortest: int, longest: int) -> list[list[int]]:
    """The first prompts of a kind whose lengths lie within these: where they do, every pass has one width."""
    from parity.references.prompts import read_prompts

    every = read_prompts(TINY / f"prompts/{kind}.jsonl", TINY / "target", 1280)
    return [list(ids) for _, ids in every if shortest <= len(ids) <= longest][:count]


def loops(options: argparse.Namespace, k: int) -> dict[str, Callable[[list[int]], Generation]]:
    """Who is timed, by name."""
    pair, made = (TINY / "target", TINY / options.drafter), {}
    for loop in ("synchronous", "asynchronous"):
        one = device.load(*pair, k, options.precision, options.engine, loop=loop, chunk=options.chunk)
        made[loop] = partial(finished, one, lambda ids, one=one: one.generate(ids, options.tokens))
        made[f"{loop} plain"] = partial(
            finished, one, lambda ids, one=one: Generation(one.decode_plain(ids, options.tokens))
        )
    return made


def finished(one: Any, run: Callable[[list[int]], Generation], ids: list[int]) -> Generation:
    """A run until everything that it sent is over, which else falls into the next one."""
    made = run(ids)
    one.synchronize()
    return made


def timed(
    made: dict[str, Callable[[list[int]], Generation]], prompts: list[list[int]], repeats: int
) -> tuple[Times, dict[str, list[Generation]]]:
    """Seconds a token of every run, and what each emitted in an untimed one, which compiles.

    Raises:
        SystemExit: the loops emit other tokens.
    """
    runs = {name: [made[name](ids) for ids in prompts] for name in RUNS}
    if runs[RUNS[0]] != runs[RUNS[1]] or runs[RUNS[2]] != runs[RUNS[3]]:
        raise SystemExit("the asynchronous loop emits other tokens than the synchronous one")
    seconds = {name: np.zeros((len(CLOCKS), len(prompts), repeats)) for name in RUNS}
    for repeat in range(repeats):
        for prompt, ids in enumerate(prompts):
            shift = (repeat + prompt) % len(RUNS)
            for name in (*RUNS[shift:], *RUNS[:shift]):
                start = [clock() for clock in CLOCKS.values()]
                tokens = len(made[name](ids).tokens)
                seconds[name][:, prompt, repeat] = [
                    (clock() - at) / tokens for clock, at in zip(CLOCKS.values(), start, strict=True)
                ]
    return seconds, runs


def ratio(over: np.ndarray, under: np.ndarray) -> tuple[float, float, float]:
    """Geometric mean over prompts of the median ratio [prompts, repetitions], and its interval."""
    random, ratios = np.random.default_rng(0), np.log(over / under)
    prompts, repeats = ratios.shape
    rows = random.integers(0, prompts, (DRAWS, prompts))
    columns = random.integers(0, repeats, (DRAWS, prompts, repeats))
    drawn = np.median(ratios[rows[..., None], columns], axis=-1).mean(axis=-1)
    return tuple(np.exp([np.median(ratios, axis=-1).mean(), *np.quantile(drawn, (0.025, 0.975))]).tolist())


def line(name: str, over: np.ndarray, under: np.ndarray) -> str:
    """Both clocks' ratios."""
    said = (
        f"{clock} {{:.2f}}x [{{:.2f}}, {{:.2f}}]".format(*ratio(over[place], under[place]))
        for place, clock in enumerate(CLOCKS)
    )
    return f"    {name:34s} {'   '.join(said)}"


def main() -> None:
    """K by K, then the best one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=tuple(device.ENGINES), default="xla")
    parser.add_argument("--precision", choices=device.PRECISIONS, default="bfloat16")
    parser.add_argument("--drafter", default="drafter", help="a folder beside the tiny target")
    parser.add_argument("--kind", choices=("chat", "raw"), default="chat")
    parser.add_argument("--k", type=int, action="append")
    parser.add_argument("--chunk", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs=2, default=(2, 400), metavar=("SHORTEST", "LONGEST"))
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=6)
    options = parser.parse_args()
    prompts, plain = prompts_of(options.kind, options.prompts, *options.lengths), {}
    shortest, longest = min(map(len, prompts)), max(map(len, prompts))
    print(f"{options.engine}, {options.precision}, {options.drafter}, chunk {options.chunk}")
    print(f"{len(prompts)} {options.kind} prompts of {shortest} to {longest} tokens, {options.tokens} new ones")
    for k in options.k or range(1, 9):
        seconds, emitted = timed(loops(options, k), prompts, options.repeats)
        lengths = [length for run in emitted[RUNS[0]] for length in run.acceptance_lengths]
        rates = {name: 1 / np.median(seconds[name][0], axis=-1).mean() for name in RUNS}
        other = sum(one.tokens != plain_.tokens for one, plain_ in zip(emitted[RUNS[0]], emitted[RUNS[2]], strict=True))
        print(f"K = {k}: acceptance length {np.mean(lengths):.2f}; {other} prompts parted from plain decoding")
        print("    " + ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items()))
        print(line("asynchronous over synchronous", seconds[RUNS[0]], seconds[RUNS[1]]))
        print(line("the same, plain decoding", seconds[RUNS[2]], seconds[RUNS[3]]))
        print(line("speculation over plain, synchronous", seconds[RUNS[2]], seconds[RUNS[0]]))
        print(line("speculation over plain, asynchronous", seconds[RUNS[3]], seconds[RUNS[1]]), flush=True)
        plain[k] = seconds[RUNS[3]], seconds[RUNS[1]]
    best = max(plain, key=lambda k: ratio(*(one[0, :, 1::2] for one in plain[k]))[0])
    print(f"best K of the odd repetitions, {best}, in the even ones:")
    print(line("speculation over plain, asynchronous", *(one[:, :, ::2] for one in plain[best])))


if __name__ == "__main__":
    main()
