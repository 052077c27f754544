"""A pass over a target in less memory than its weights take: the reference, transformers with disk offload, AirLLM.

    python benchmarks/offload.py PAIR [--python INTERPRETER] [--memory 1] [--tokens 64]
        [--way reference|transformers|airllm ...]

PAIR is a folder of `parity.fixtures.recipe.real_shape`. One prompt of random tokens, bfloat16, without a cache: seconds
and processor seconds of loading, of the first pass and of a second one, and the most memory that was resident. Each way
is a process of its own; transformers needs accelerate, AirLLM itself: `--python` is an interpreter that has them beside
torch. `--memory` is in GiB, what transformers may keep in memory and the reference keeps converted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOUSE = Path(__file__).resolve().parents[1]
TOKENIZER = HOUSE / "fixtures" / "tiny" / "target"


def ids(count: int) -> Any:
    """Token ids [1, S]."""
    import torch

    return torch.randint(1000, 200000, (1, count), generator=torch.Generator().manual_seed(0))


def reference(target: Path, memory: float, scratch: Path) -> Callable[[Any], Any]:
    """The plain reference over weights in their files."""
    import torch

    from parity.references.plain import PlainTarget
    from parity.references.stored import Hot

    made = PlainTarget(target, torch.bfloat16, Hot(int(memory * 2**30)))

    def run(tokens: Any) -> Any:
        made.reset(lambda _, value: value)
        return made.forward(tokens[0])

    return run


def transformers(target: Path, memory: float, scratch: Path) -> Callable[[Any], Any]:
    """Layers that do not fit the memory given go to disk, in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, Mxfp4Config

    how = dict(device_map="auto", max_memory={"cpu": f"{memory}GiB"}, offload_folder=str(scratch / "offload"))
    made = AutoModelForCausalLM.from_pretrained(
        target, dtype=torch.bfloat16, quantization_config=Mxfp4Config(dequantize=True), **how
    )
    places = made.hf_device_map.values()
    print(f"  {sum(one == 'disk' for one in places)} of {len(places)} modules on disk")
    return lambda tokens: made(tokens, use_cache=False).logits


def airllm(target: Path, memory: float, scratch: Path) -> Callable[[Any], Any]:
    """A layer at a time, from files of its own; it asks for a tokenizer, which the pair has none of."""
    from airllm import AutoModel

    folder = scratch / "target"
    folder.mkdir()
    for source in (target, TOKENIZER):
        for file in source.iterdir():
            if source is target or file.name.startswith("tokenizer"):
                (folder / file.name).symlink_to(file)
    made = AutoModel.from_pretrained(str(folder), device="cpu", layer_shards_saving_path=str(scratch / "shards"))
    return lambda tokens: made(input_ids=tokens, use_cache=False).logits


WAYS: dict[str, Callable[[Path, float, Path], Callable[[Any], Any]]] = {
    one.__name__: one for one in (reference, transformers, airllm)
}


def measure(way: str, target: Path, memory: float, tokens: int) -> None:
    """Load, pass, pass again."""
    import torch

    sys.path[0] = str(HOUSE)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        begun, spent = time.perf_counter(), time.process_time()
        run: Any = None
        for step in ("load", "first pass", "second pass"):
            if run is None:
                run = WAYS[way](target, memory, Path(scratch))
            else:
                logits = run(ids(tokens))
                assert logits.isfinite().all(), "logits are no numbers"
            seconds, processor = time.perf_counter() - begun, time.process_time() - spent
            begun, spent = time.perf_counter(), time.process_time()
            print(f"  {step:12s}{seconds:8.1f} s{processor:8.1f} s of processor", flush=True)


def main() -> None:
    """Each way in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pair", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--memory", type=float, default=1)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--way", action="append", choices=[*WAYS])
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here:
        return measure(asked.way[0], asked.pair.resolve() / "target", asked.memory, asked.tokens)
    for way in asked.way or WAYS:
        print(way, flush=True)
        options = ("--way", way, "--memory", asked.memory, "--tokens", asked.tokens, "--here")
        command = [asked.python, __file__, str(asked.pair), *map(str, options)]
        process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(HOUSE), "OMP_NUM_THREADS": "1"})
        _, status, used = os.wait4(process.pid, 0)
        ended = f", ended with {os.waitstatus_to_exitcode(status)}" if status else ""
        print(f"  {used.ru_maxrss / 2**20:.2f} GiB resident at most{ended}", flush=True)


if __name__ == "__main__":
    main()
