"""What a golden of real width costs: the checkpoint written, and dumped with its weights left in their files.

    python benchmarks/real_size.py FOLDER [--model 20b] [--layers 2] [--prompts 4] [--tokens 64] [--rounds 8]
        [--memory 0.5] [--batch 4] [--threads 2]

Each step is a process of its own: seconds, processor seconds, and the most memory that was resident (mapped pages of
the weights' files included). `weights` reads and converts every matrix of target and drafter once in float32 and once
in bfloat16, `prefill` is the golden of the prompts alone (goal: at most twice that), `golden` that of the rounds as
well; from them the processor time of a round. What all layers would take is estimated: layers take as many times more
as there are, and of prefill and rounds the share that they take of `weights`. Random weights accept next to no draft,
so that a round emits one token. What it takes on disk: 6.5 GB for two layers of 20b with its drafter, and the golden. A
checkpoint that is in FOLDER already is taken up.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[1]
WHOLE = {"20b": 24, "120b": 36}
"""Layers of the models."""


def step(name: str, *command: object) -> tuple[float, str]:
    """Run a command, print what it took; its processor seconds, and what it printed."""
    begun = time.monotonic()
    process = subprocess.Popen([sys.executable, *map(str, command)], cwd=HOUSE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    seconds, processor = time.monotonic() - begun, used.ru_utime + used.ru_stime
    print(
        f"{name:12s}{seconds:9.1f} s{processor:10.1f} s of processor{used.ru_maxrss / 2**20:8.2f} GiB resident",
        flush=True,
    )
    if status:
        raise SystemExit(f"{name}: ended with {os.waitstatus_to_exitcode(status)}")
    return processor, said


def convert(pair: Path) -> None:
    """Read and convert every matrix of a pair once in float32 and once in bfloat16, as the references do.

    Prints the processor seconds of the target's layers, and of all else.
    """
    sys.path[0] = str(HOUSE)
    import torch

    from parity.references.stored import ROWS, Hot, StoredCheckpoint, StoredModule, load_peagle

    layers, begun = 0.0, time.process_time()
    for dtype in (torch.float32, torch.bfloat16):
        hot = Hot(0)
        files = StoredCheckpoint(pair / "target", dtype, hot)
        drafter = load_peagle(pair / "drafter", dtype, hot)
        modules = (one for one in drafter.modules() if isinstance(one, StoredModule) and not one.by_rows)
        for table in (files.outer()["lm_head.weight"], *(one.table for one in modules)):
            for first in range(0, len(table), ROWS):
                table.part(first, min(first + ROWS, len(table)))
        entered = time.process_time()
        for number in range(files.config.num_hidden_layers):
            layer = files.layer(number)
            for name in layer:
                if "experts" not in name:
                    layer[name]
            for name in ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"):
                for expert in range(files.config.num_local_experts):
                    layer[name][expert]
        layers += time.process_time() - entered
    print(layers, time.process_time() - begun - layers)


def main() -> None:
    """Write and dump."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="20b")
    for name, default in (("layers", 2), ("prompts", 4), ("batch", 4), ("tokens", 64), ("rounds", 8), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--memory", type=float, default=0.5)
    parser.add_argument("--convert", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.convert:
        return convert(asked.folder)
    pair = asked.folder.resolve() / "pair"
    if not pair.exists():
        recipe = ("-m", "parity.fixtures.recipe.real_shape", pair, "--model", asked.model, "--layers", asked.layers)
        step("checkpoint", *recipe, "--prompts", asked.prompts, "--tokens", asked.tokens)
    weights, said = step("weights", __file__, pair, "--convert")
    checkpoints = ("--target", pair / "target", "--drafter", pair / "drafter", "--prompts", pair / "prompts.jsonl")
    how = ("--reference", "plain", "--memory", asked.memory, "--batch", asked.batch, "--threads", asked.threads)
    dump = ("-m", "parity", "dump-golden", *checkpoints, *how, "-k", 3)
    prefill, _ = step("prefill", *dump, "--max-new-tokens", 1, "--out", asked.folder.resolve() / "prefill")
    print(f"prefill over weights: {prefill / weights:.2f} of processor time (goal: at most 2)")
    layers, rest = map(float, said.split())
    more = 1 + (WHOLE[asked.model] / asked.layers - 1) * layers / (layers + rest)
    print(f"estimate of the prefill, all {WHOLE[asked.model]} layers: {prefill * more:.0f} s of processor")
    if asked.rounds:
        golden = asked.folder.resolve() / "golden"
        whole, _ = step("golden", *dump, "--max-new-tokens", asked.rounds + 1, "--out", golden)
        size = sum(file.stat().st_size for file in golden.iterdir())
        print(f"golden      {size / 2**20:9.0f} MiB on disk")
        round_ = (whole - prefill) / asked.rounds
        print(f"a round of all prompts: {round_:.1f} s of processor, estimate of all layers {round_ * more:.0f} s")


if __name__ == "__main__":
    main()
