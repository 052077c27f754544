"""What a harmless change of rounding moves: every figure that history keeps, over the clean devices of one golden.

    python benchmarks/harmless.py --golden GOLDEN [--precision float32] [--json FILE]

A clean device differs from the one that ships in the order of sums and in padding only (docs/calibration.md). How far
each figure then moves from the shipping device's is the least that a noise band has to allow
(`parity/history/bands.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path[0] = str(Path(__file__).parents[1])  # not this folder: its device.py is not the device

from parity.builders import builder, clean_devices  # noqa: E402
from parity.gates import run_gates  # noqa: E402
from parity.gates.context import GateContext  # noqa: E402
from parity.golden.store import Dump  # noqa: E402
from parity.nightly import metrics  # noqa: E402
from parity.nightly.judge import MODES  # noqa: E402

GATES = ("decisions", "acceptance")
FIRST = "numpy"


def figures(golden: Dump, device: str, precision: str) -> dict[tuple[str, str, str], float]:
    """(stage, mode, metric) to value."""
    with TemporaryDirectory() as folder:
        context = GateContext(golden, device, builder(device, golden), precision, Path(folder))
        gates = run_gates(context, GATES)
        found = [one for mode in MODES for one in metrics.of_report(context.compared(mode))]
        found += metrics.of_gates(gates.results)
    return {(one.stage, one.mode, one.name): one.value for one in found}


def moves(first: dict, others: list[dict]) -> dict[tuple[str, str], np.ndarray]:
    """(metric, mode) to [n, 2]: |value - first|, and the same over first, of every stage and device."""
    found = defaultdict(list)
    for other in others:
        for key in first.keys() & other.keys():
            _, mode, name = key
            moved = abs(other[key] - first[key])
            found[name, mode].append((moved, moved / abs(first[key]) if first[key] else 0.0))
    return {key: np.array(rows) for key, rows in sorted(found.items())}


def main() -> None:
    """Run, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--golden", type=Path, required=True)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--devices", nargs="*")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    golden = Dump(given.golden)
    first, others = figures(golden, FIRST, given.precision), []
    devices = given.devices or [one for one in clean_devices(golden)[0] if one != FIRST]
    for device in devices:
        others.append(figures(golden, device, given.precision))
        print(
            device,
            "differs in",
            sum(value != first.get(key) for key, value in others[-1].items()),
            "of",
            len(first),
            flush=True,
        )
    print(
        "\n| metric | mode | series | largest move | 99 % of moves | largest, of the value | 99 %, of the value |"
        "\n|---|---|--:|--:|--:|--:|--:|"
    )
    for (name, mode), rows in moves(first, others).items():
        top, high = rows.max(axis=0), np.quantile(rows, 0.99, axis=0)
        print(f"| {name} | {mode} | {len(rows)} | {top[0]:.2g} | {high[0]:.2g} | {top[1]:.2g} | {high[1]:.2g} |")
    if given.json:
        kept = [{" ".join(key): value for key, value in one.items()} for one in (first, *others)]
        given.json.write_text(json.dumps(dict(zip((FIRST, *devices), kept, strict=True))))


if __name__ == "__main__":
    main()
