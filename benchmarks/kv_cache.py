"""Quantised caches: acceptance, noise floors, and the smallest wrong scale that is seen.

    python benchmarks/kv_cache.py acceptance [--prompts 12] [--tokens 48]
    python benchmarks/kv_cache.py floors
    python benchmarks/kv_cache.py scales

`acceptance` runs the float32 references freely over chat prompts of the tiny pair, for each format and family of
drafters; `floors` compares the noise of small goldens of either kind; `scales` makes the target's scales wrong by a
factor in one device, where it reads its caches alone or where it writes and reads them, and says what a comparison of
one prompt's prefill and one round makes of that.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from parity.builders import builder
from parity.bundled import scaled_pair, tiny
from parity.compare import compare
from parity.compare.rows import stage_rows
from parity.device.faults.planting import during
from parity.device.pipeline import Pipeline
from parity.drive import run_device
from parity.families import FAMILIES
from parity.fault_choice import small_golden
from parity.golden.fields import Mode
from parity.golden.store import Dump
from parity.golden.views import GoldenSlice, TrustedGolden
from parity.metrics import measure
from parity.policy import read_policy
from parity.references.drafting import load_loop
from parity.references.prompts import read_prompts
from parity.run_request import RunRequest

KINDS = ("p-eagle", "eagle-3", "draft-model")
CACHES = (("", False), ("fp8_e4m3", False), ("fp8_e4m3", True), ("fp8_e5m2", False))
"""Format, and whether the checkpoints have scales."""
FACTORS = (1.00001, 1.0001, 1.001, 1.003, 1.01, 1.03, 1.1, 1.3)
STAGES = ("kv.target.0.k", "kv.target.7.v", "target.layers.7.attn_out", "target.logits", "drafter.logits")
MODES: tuple[Mode, ...] = ("local", "chained")


class Silent:
    """A recorder that keeps nothing."""

    def begin(self, round_: int) -> None:
        """Nothing."""

    def __call__(self, stage: str, value: Any) -> Any:
        return value


def row(*cells: object) -> None:
    """One line of a table, at once."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def acceptance(prompts: int, tokens: int) -> None:
    """Acceptance length of each family under each format."""
    chosen = read_prompts(tiny("prompts/chat.jsonl"), tiny("target"), 1280)[:prompts]
    row("drafter", "caches", "scales", "rounds", "AL", f"same text, of {prompts}")
    row(*["---"] * 6)
    with TemporaryDirectory() as folder:
        for kind in KINDS:
            plain = tiny("target"), tiny(FAMILIES[kind].checkpoint)
            scaled = scaled_pair(*plain, Path(folder) / kind)
            text: list[tuple[int, ...]] = []
            for form, with_scales in CACHES:
                loop = load_loop(*(scaled if with_scales else plain), torch.float32, 4, kv_cache=form)
                with torch.no_grad():
                    results = [loop.run(ids, tokens, Silent()) for _, ids in chosen]
                text = text or [one.emitted for one in results]
                lengths = [length for one in results for length in one.acceptance_length]
                mean, half = np.mean(lengths), 1.96 * np.std(lengths) / np.sqrt(len(lengths))
                same = sum(one.emitted == true for one, true in zip(results, text, strict=True))
                said = "checkpoint's" if with_scales else "1" if form else ""
                row(kind, form or "float32", said, len(lengths), f"{mean:.2f} ± {half:.2f}", same)


def floors() -> None:
    """Pooled noise of some stages, relative, without and with quantised caches."""
    forms = ("", "fp8_e4m3", "fp8_e5m2")
    row("stage", "mode", *(form or "bfloat16" for form in forms))
    row(*["---"] * 5)
    with TemporaryDirectory() as folder:
        goldens = []
        for form in forms:
            (Path(folder) / f"of-{form}").mkdir()
            goldens.append(small_golden(Path(folder) / f"of-{form}", kv_cache=form))
        for stage, mode in product(STAGES, MODES):
            row(f"`{stage}`", mode, *(f"{_floor(one, stage, mode):.2%}" for one in goldens))


def _floor(golden: TrustedGolden, stage: str, mode: str) -> float:
    rows = stage_rows(golden, golden, golden.declared[stage], device="float32", mode=mode)
    return float(measure(rows.golden, rows.noise_floor, row_axes=1).rel_l2) if rows else float("nan")


def scales() -> None:
    """The verdict of every factor, by where it is wrong, part, precision and mode."""
    row("wrong", "of", "precision", "mode", *FACTORS)
    row(*["---"] * (4 + len(FACTORS)))
    with TemporaryDirectory() as folder:
        golden = GoldenSlice(small_golden(Path(folder), kv_cache="fp8_e4m3"), 0, 1)
        for case in product(("read", "written and read"), "kv", ("float32", "bfloat16"), MODES):
            row(*case, *(_verdict(golden, Path(folder), *case, factor) for factor in FACTORS))


def _verdict(
    golden: TrustedGolden, folder: Path, where: str, part: str, precision: str, mode: Mode, factor: float
) -> str:
    made: Any = builder("numpy", golden)(precision=precision)
    (_read_wrong if where == "read" else _kept_wrong)(made.inside, f"{part}_scale", factor)
    with TemporaryDirectory(dir=folder) as out:
        run = Dump(run_device(RunRequest(made, golden, mode, (), Path(out) / "run", free=False)))
        return compare(golden, run, read_policy(None, precision)).verdict


def _kept_wrong(planted: Pipeline, name: str, factor: float) -> None:
    """The target's caches have other scales."""
    engine = planted.engine
    for weights in planted.target.layers:
        weights[name] = engine.array(engine.host(weights[name]) * np.float32(factor), np.float32)


def _read_wrong(planted: Pipeline, name: str, factor: float) -> None:
    """The target's attention reads its caches by other scales than they are written and shown by."""

    def read(clean: Any, caches: Any, weights: dict[str, Any], kind: str, like: Any) -> Any:
        return clean.read(caches, weights | {name: weights[name] * factor}, kind, like)

    during(
        planted,
        "kernels.target_layer:quantised",
        lambda clean: SimpleNamespace(written=clean.written, read=partial(read, clean)),
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("acceptance", "floors", "scales"))
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=48)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "acceptance":
        acceptance(given.prompts, given.tokens)
    else:
        {"floors": floors, "scales": scales}[given.what]()


if __name__ == "__main__":
    main()
