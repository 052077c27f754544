"""What sketches tell: are errors inside their intervals, are faults found, is a clean device left in peace.

`sketch_overhead.py` has the cost.

    python benchmarks/sketches.py coverage               200 planted errors, a stage and one row each
    python benchmarks/sketches.py size                   bytes of a row and of a golden
    python benchmarks/sketches.py clean                  clean devices, both modes and precisions, three seeds
    python benchmarks/sketches.py catalogue --every 6    planted faults by a whole golden and by smaller ones

`--golden DIR` names a whole golden that is there already; by default the one that faults are judged by is dumped.
"""

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from parity.api import compare_dumps, run_device
from parity.builders import builder, planted_faults
from parity.compare.intervals import CONFIDENCE, factors, freedom
from parity.compare.report import FAIL
from parity.drive import run_device as drive
from parity.fault_choice import choose_faults, small_golden
from parity.faults import MODES
from parity.golden.smaller import Smaller, smaller_golden
from parity.golden.store import Dump
from parity.golden.trust import trusted
from parity.golden.views import TrustedGolden
from parity.guard import unguarded
from parity.run_request import RunRequest
from parity.sketch import EXTRA, sketch

TOPLOC = 258
"""Bytes of TOPLOC's commitment for 32 tokens of one stage, by its paper."""

POSITIONS = "0-3,62-66"
"""Prompt positions beside the last two: the beginning, and around YaRN's original context of the tiny pair, 64."""
STAGES = (
    "target.embed", "target.layers.*.[qkv]", "attn_out", "*.ffn_out", "*.out", "*logits", "drafter.[ipst]*",
    "drafter.fc_out", "accept.*", "kv.*.length",
)  # fmt: skip
"""All but what is another stage normed, or kept a second time in the caches."""

SMALLER: dict[str, tuple[Smaller, tuple[str, ...]]] = {
    "sketch 64": (Smaller(64), ()),
    "sketch 8, some positions": (Smaller(8, logits="top:8", positions=POSITIONS), ()),
    "sketch 6, some positions and stages": (Smaller(6, logits="top:8", positions=POSITIONS), STAGES),
}
UNSEEN = ("worst_column", "largest", "unlike", "rows")


def coverage(chosen: argparse.Namespace) -> None:
    """Errors of many kinds, planted in rows of a stage's shape; those of a single row, and of all rows together."""
    for count in (8, 16, 64):
        inside = {"a stage": 0, "a row": 0}
        for trial in range(200):
            rng = np.random.default_rng([trial, count])
            golden = _golden_rows(rng)
            error = _planted(rng, golden)
            true = np.sqrt(np.square(error).sum(axis=1))
            sums = (sketch(golden + error, count, trial) - sketch(golden, count, trial))[:, :count].astype(np.float64)
            estimates = np.sqrt(np.square(sums).mean(axis=1))
            row = int(rng.integers(len(true)))
            inside["a row"] += _inside(estimates[row], true[row], factors(count))
            pooled = np.sqrt(np.square(estimates).sum()), np.sqrt(np.square(true).sum())
            inside["a stage"] += _inside(*pooled, factors(freedom(sums)))
        told = ", ".join(f"{what} {hits} of 200" for what, hits in inside.items())
        print(f"sketch of {count} numbers: inside the {CONFIDENCE:.0%} interval: {told}")


def _golden_rows(rng: np.random.Generator) -> np.ndarray:
    """Rows with the outlying columns that residual streams have."""
    rows = rng.standard_normal((int(rng.integers(8, 200)), int(rng.choice([96, 256, 1280, 2880]))))
    rows[:, rng.integers(rows.shape[1], size=3)] *= 30
    return rows.astype(np.float32).astype(np.float64)


def _planted(rng: np.random.Generator, rows: np.ndarray) -> np.ndarray:
    """Noise, one direction in all rows, a scale, a few elements, a head's columns, another row's values; any size."""
    size = 10.0 ** rng.uniform(-4, 0)
    kind = int(rng.integers(6))
    error = np.zeros_like(rows)
    if kind == 0:
        error = rng.standard_normal(rows.shape)
    elif kind == 1:
        error = rng.standard_normal((len(rows), 1)) * rng.standard_normal(rows.shape[1])
    elif kind == 2:
        error = rows.copy()
    elif kind == 3:
        error[:, rng.integers(rows.shape[1], size=3)] = rng.standard_normal((len(rows), 3))
    elif kind == 4:
        error[:, :32] = rows[:, 32:64] - rows[:, :32]
    else:
        error = np.roll(rows, 1, axis=0) - rows
    moved = (rows + size * error).astype(np.float32).astype(np.float64)
    return moved - rows


def _inside(estimate: float, true: float, ends: tuple[float, float]) -> bool:
    return bool(ends[0] * estimate <= true <= ends[1] * estimate)


def sizes(chosen: argparse.Namespace) -> None:
    """Of a row of gpt-oss's width by N, of which a device reads back the first; and of goldens of the tiny pair."""
    width, floors = 2880, 2 * 4 * 4
    print(f"a row of {width} numbers: whole {4 * width} bytes, in a golden with both floors {8 * width}")
    print(f"  TOPLOC: {TOPLOC / 32:.1f} bytes a token")
    for count in (1, 2, 8, 16, 64, 256):
        own = 4 * (count + EXTRA)
        print(
            f"  sketch of {count:3}: a device {own} bytes, a golden {own + floors}, 1/{8 * width / (own + floors):.0f}"
        )
    with _golden(chosen.golden) as (golden, folder):
        for name, small in _smaller(golden, folder):
            told = [f"1/{_bytes(golden.folder, glob) / _bytes(small.folder, glob):.1f} {what}"
                    for glob, what in (("*", "in all"), ("*.safetensors", "without manifest"))]  # fmt: skip
            print(f"{name}: {_bytes(small.folder, '*') / 1e6:.2f} MB, {', '.join(told)}")


def _bytes(folder: Path, glob: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(glob))


def clean(chosen: argparse.Namespace) -> None:
    """Clean devices on sketch goldens of several seeds."""
    with _golden(chosen.golden) as (golden, folder):
        seeds = [(seed, folder / f"seed{seed}") for seed in chosen.seeds]
        small = {
            seed: trusted(Dump(smaller_golden(golden, out, Smaller(64, seed))), smaller=True) for seed, out in seeds
        }
        for device, mode, precision in product(chosen.devices, MODES, ("bfloat16", "float32")):
            run = run_device(golden, device, mode, precision, out=folder / f"{device}-{mode}-{precision}")
            whole = compare_dumps(golden, run).verdict
            told = []
            for seed, one in small.items():
                report = compare_dumps(one, run, without=UNSEEN)
                told.append(f"seed {seed} {report.verdict} ({compare_dumps(one, run).verdict} without --without)")
            print(f"{device} {mode} {precision}: whole {whole}; {'; '.join(told)}", flush=True)


def catalogue(chosen: argparse.Namespace) -> None:
    """Each fault, in each mode that it is due in, by the whole golden and by the smaller ones."""
    with _golden(chosen.golden) as (golden, folder):
        small = dict(_smaller(golden, folder))
        faults = choose_faults(planted_faults()[0], chosen.faults)[chosen.first :: chosen.every]
        found = dict.fromkeys(("whole", *small), 0)
        for fault in faults:
            verdicts = _judged(golden, small, fault, folder)
            failed = {name for name, mine in verdicts.items() if FAIL in mine}
            if "whole" in failed:
                for name in failed:
                    found[name] += 1
            missed = [f"{name} {'/'.join(mine)}" for name, mine in verdicts.items() if name not in failed]
            print(f"{fault.id}: {'found by all' if not missed else 'not by ' + ', '.join(missed)}", flush=True)
        print(f"of {len(faults)} faults the whole golden's comparisons find {found.pop('whole')}; of these", found)


def _judged(golden: TrustedGolden, small: dict[str, TrustedGolden], fault: Any, folder: Path) -> dict[str, list[str]]:
    """Verdicts by golden, one of each mode; a smaller golden is asked where the whole one fails."""
    verdicts: dict[str, list[str]] = {name: [] for name in ("whole", *small)}
    options = {name: number for name, number in (("tp", fault.tp), ("lanes", fault.lanes)) if number > 1}
    for mode in MODES:
        device = builder("numpy", golden)(precision=fault.precision, **options)
        fault.plant(unguarded(device))
        with tempfile.TemporaryDirectory(dir=folder) as place:
            try:
                run = Dump(drive(RunRequest(device, golden, mode, (), Path(place) / "run")))
                verdicts["whole"].append(compare_dumps(golden, run).verdict)
                for name, one in small.items():
                    stages = list(one.manifest.stages)
                    verdicts[name].append(compare_dumps(one, _of(run, stages), without=UNSEEN).verdict)
            except Exception as error:
                verdicts["whole"].append(f"{type(error).__name__}: {error}")
    return verdicts


def _of(run: Dump, stages: list[str]) -> Dump:
    """The run as one of these stages alone."""
    kept = tuple(name for name in run.manifest.stages if name in stages)
    run.manifest = run.manifest.model_copy(update={"stages": kept})
    return run


def _smaller(golden: TrustedGolden, folder: Path) -> Iterator[tuple[str, TrustedGolden]]:
    for number, (name, (asked, stages)) in enumerate(SMALLER.items()):
        yield name, trusted(Dump(smaller_golden(golden, folder / f"small{number}", asked, stages)), smaller=True)


@contextlib.contextmanager
def _golden(named: Path | None) -> Iterator[tuple[TrustedGolden, Path]]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        yield (trusted(Dump(named)) if named else small_golden(folder)), folder


def main() -> None:
    """One of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", type=Path)
    kinds = parser.add_subparsers(required=True)
    for name, measure in (("coverage", coverage), ("size", sizes), ("clean", clean), ("catalogue", catalogue)):
        kind = kinds.add_parser(name, help=measure.__doc__)
        kind.set_defaults(measure=measure)
        if name == "catalogue":
            kind.add_argument("--every", type=int, default=6)
            kind.add_argument("--first", type=int, default=0)
            kind.add_argument("faults", nargs="*")
        if name == "clean":
            kind.add_argument("--devices", nargs="+", default=["numpy", "xla"])
            kind.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    chosen = parser.parse_args()
    start = time.perf_counter()
    chosen.measure(chosen)
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
