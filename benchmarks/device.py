"""Decode tokens per second of the device's engines, the torch device and Hugging Face's `generate`, on the tiny target.

    python benchmarks/device.py [--tokens 96] [--repeats 5] [--precision float32] [--engine xla --engine numpy]

Where PyTorch sees a GPU, `generate` and the torch device run on it, the other engines on the CPU. Everyone continues
the same prompt greedily, one sequence, a cache, the same precision and the same number of threads (one, unless
OMP_NUM_THREADS says otherwise). The repetitions alternate, and each ratio is taken within its own repetition, so that a
load from outside falls on all alike; printed are medians. Prefill is part of every run. What an engine spends on
compiling is shown apart: an untimed run of each comes first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[1]
sys.path[0] = str(HOUSE)  # or this file would be found under the package's name
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("NPROC", os.environ["OMP_NUM_THREADS"])  # XLA's threads

from parity import device  # noqa: E402
from parity.device import torch as torch_device  # noqa: E402
from parity.device.pipeline import Pipeline  # noqa: E402

TINY = HOUSE / "fixtures" / "tiny"
K = 4
PEER = "HF generate"
Run = Callable[[], list[int]]


def prompt_ids() -> list[int]:
    """The first chat prompt."""
    from transformers import AutoTokenizer

    line = (TINY / "prompts/chat.jsonl").read_text().splitlines()[0]
    tokenizer = AutoTokenizer.from_pretrained(TINY / "target", trust_remote_code=False)
    return tokenizer.apply_chat_template(json.loads(line)["messages"], add_generation_prompt=True, return_dict=False)


def hugging_face(ids: list[int], tokens: int, precision: str) -> Run:
    """Greedy `generate` with its default cache, exactly this many tokens, where the torch device computes."""
    import torch
    from transformers import AutoModelForCausalLM

    from parity.device.torch.tensors import PLACE

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model = AutoModelForCausalLM.from_pretrained(
        TINY / "target", dtype=getattr(torch, precision), trust_remote_code=False
    ).to(PLACE)
    model.eval()
    inputs = torch.tensor([ids], device=PLACE)
    options = dict(do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens, use_cache=True)

    def run() -> list[int]:
        with torch.inference_mode():
            made = model.generate(inputs, attention_mask=torch.ones_like(inputs), **options)
        return made[0, len(ids) :].tolist()

    return run


def load(name: str, precision: str) -> Pipeline:
    """An engine's pipeline on the tiny pair, or the torch device's."""
    pair = TINY / "target", TINY / "drafter", K, precision
    return torch_device.load(*pair) if name == torch_device.NAME else device.load(*pair, name)


def runs(ids: list[int], tokens: int, precision: str, engines: list[str]) -> tuple[dict[str, Run], dict[str, Pipeline]]:
    """Who is timed, by name; and the pipelines among them."""
    loaded = {name: load(name, precision) for name in engines}
    made: dict[str, Run] = {PEER: hugging_face(ids, tokens, precision)}
    for name, pipeline in loaded.items():
        made[f"{name}, speculative"] = lambda pipeline=pipeline: pipeline.generate(ids, tokens).tokens
        made[f"{name}, plain"] = lambda pipeline=pipeline: pipeline.decode_plain(ids, tokens)
    return made, loaded


def rate(run: Run) -> float:
    """Tokens per second of one run."""
    start = time.perf_counter()
    tokens = run()
    return len(tokens) / (time.perf_counter() - start)


def report(made: dict[str, Run], rates: list[dict[str, float]]) -> None:
    """Median rate, and the median of the ratios to the peer's run of the same repetition."""
    for name in made:
        ratios = [one[name] / one[PEER] for one in rates]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        middle = statistics.median(one[name] for one in rates)
        print(f"{name:24s} {middle:8.1f} tokens/s  {statistics.median(ratios):6.2f}x HF ({spread})")


def main() -> None:
    """One untimed run of each, then the alternating ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--precision", choices=device.PRECISIONS, action="append")
    parser.add_argument("--engine", choices=(*device.ENGINES, torch_device.NAME), action="append")
    options = parser.parse_args()
    ids = prompt_ids()
    for precision in options.precision or device.PRECISIONS:
        made, loaded = runs(ids, options.tokens, precision, options.engine or ["xla", "numpy", torch_device.NAME])
        print(f"{precision}, prompt of {len(ids)} tokens, {options.tokens} new ones, {options.repeats} repetitions")
        counts = {name: len(run()) for name, run in made.items()}
        if short := {name: count for name, count in counts.items() if count != options.tokens}:
            print(f"ended early, tokens each: {short}")
        for name, pipeline in loaded.items():
            if programs := getattr(pipeline.target.engine, "programs", None):
                print(f"{name}: {len(programs.used)} programs, {programs.seconds:.1f} s to trace and compile them")
        report(made, [{name: rate(run) for name, run in made.items()} for _ in range(options.repeats)])


if __name__ == "__main__":
    main()
