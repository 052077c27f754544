"""What `parity diff A B` costs on pairs of files, in seconds, and how it ends: the table of docs/comparing-tensors.md.

python benchmarks/pairs.py --out build/pairs            # two sides of 256 MiB; --numbers 20 for a quick look
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes  # noqa: F401  (NumPy reads bfloat16 by it)
import numpy as np
from safetensors.numpy import load_file, save_file

from parity.bundled import tiny

TENSORS = 16
"""Of a file with names."""


def main() -> None:
    """Write the pairs, compare each and print a row for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="A new folder for the files.")
    parser.add_argument("--numbers", type=int, default=26, help="Numbers of a side, as a power of two; float32.")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    size = 2**options.numbers
    print(f"{size:,} float32 numbers ({size / 2**18:g} MiB) a side; the wrong one has one element off by 1\n")
    print("| A and B | right | wrong |\n|---|---|---|")
    numbers = np.random.default_rng(0).standard_normal(size, np.float32)
    for suffix, write in (("npy", _npy), ("safetensors", _safetensors), ("pt", _pt)):
        folder = options.out / suffix
        folder.mkdir()
        named = {f"layers.{n}": part for n, part in enumerate(np.split(numbers, TENSORS))}
        write(folder / f"b.{suffix}", named)
        write(folder / f"a.{suffix}", named)
        named["layers.7"] = named["layers.7"].copy()
        named["layers.7"][11] += 1
        write(folder / f"wrong.{suffix}", named)
        right, wrong = (_diff(folder / f"{side}.{suffix}", folder / f"b.{suffix}") for side in ("a", "wrong"))
        print(
            f"| two `.{suffix}`{'' if suffix == 'npy' else f' of {TENSORS} tensors'} | {right} | {wrong} |", flush=True
        )
        shutil.rmtree(folder)
    print(_other_names(options.out))


def _other_names(out: Path) -> str:
    """A row: the tiny target's tensors as files of other names and turned, beside its checkpoint."""
    held = {
        name: value for path in sorted(tiny("target").glob("*.safetensors")) for name, value in load_file(path).items()
    }
    files, mapped = out / "other", out / "map.toml"
    for name, value in held.items():
        path = files / f"{name.replace('model.layers', 'block').replace('.', '/')}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, value.astype(np.float32).T if value.ndim == 2 else value.astype(np.float32))
    pair = (files, tiny("target"), "--any-dtype")
    alone = _diff(*pair[:2], "--any-dtype")
    told = [f"without a map {alone}", f"`--suggest-map` {_diff(*pair[:2], '--suggest-map', mapped)}"]
    told.append(f"`--map` {_diff(*pair, '--map', mapped)}")
    wrong = next(iter(files.rglob("q_proj/weight.npy")))
    np.save(wrong, -np.load(wrong))
    negated = _diff(*pair, "--map", mapped)
    what = f"{len(held)} `.npy` under other names, turned, beside a checkpoint"
    return f"| {what} | {'; '.join(told)} | one tensor negated: {negated} |"


def _npy(path: Path, named: Mapping[str, np.ndarray]) -> None:
    np.save(path, np.concatenate(list(named.values())))


def _safetensors(path: Path, named: Mapping[str, np.ndarray]) -> None:
    save_file(dict(named), path)


def _pt(path: Path, named: Mapping[str, np.ndarray]) -> None:
    import torch

    torch.save({name: torch.from_numpy(value) for name, value in named.items()}, path)


def _diff(*arguments: object) -> str:
    """Seconds and exit code of a comparison."""
    began = time.perf_counter()
    ended = subprocess.run([sys.executable, "-m", "parity", "diff", *map(str, arguments)], capture_output=True)
    return f"{time.perf_counter() - began:.1f} s, exit {ended.returncode}"


if __name__ == "__main__":
    main()
