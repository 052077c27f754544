"""What the bound on columns sees: the smallest error of one output column of a weight, with the bound and without it.

    python benchmarks/columns.py [--golden DIR]

One column of a weight of the numpy device is multiplied by 1 + e; errors travel, and the whole chained bfloat16 verdict
of one prompt is asked. Printed for each weight: the smallest e, in steps of an eighth of an octave, at which any stage
fails, and at which one would by all other bounds. About three minutes of one core.
"""

from __future__ import annotations

import argparse
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.sensitivity import Bench, Feed, feeds, smallest
from parity.compare.report import FAIL, Report
from parity.golden.store import Dump
from parity.producers import dump_golden

BOUND = "worst_column"


class ColumnBench(Bench):
    """One output column of each weight is off: the one a third of the way."""

    def perturbed(self, weight: np.ndarray, e: float) -> np.ndarray:
        """A weight [..., C] with a column times 1 + e."""
        changed = weight.copy()
        changed[..., weight.shape[-1] // 3] *= 1 + np.float32(e)
        return changed


def caught(report: Report) -> bool:
    """Whether any stage fails."""
    return report.verdict == FAIL


def caught_without(report: Report) -> bool:
    """Whether any stage fails by another bound than that on columns; a choice that is a bug counts."""
    return any(
        stage.choices.get("bug")
        or any(stage.x[name] > warn for name, (_, warn) in stage.bounds.items() if name in stage.x and name != BOUND)
        for stage in report.stages
    )


def line(bench: Bench, feed: Feed) -> str:
    """One row of the table."""
    probe = cache(lambda step: bench.report([feed], 2 ** (step / 8), "chained"))
    ends = [smallest(lambda step, seen=seen: bool(seen(probe(step)))) for seen in (caught, caught_without)]
    return f"| `{feed}` | {ends[0]:.3g} | {ends[1]:.3g} | {ends[1] / ends[0]:.2g}x |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--golden", type=Path, help="a golden of a bfloat16 pair; one prompt of the tiny pair by default"
    )
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        golden = Dump(options.golden) if options.golden else dump_golden(max_new_tokens=12, out=Path(folder) / "g")
        bench = ColumnBench(golden)
        print("| one column of | with the bound | without it | ratio |\n|---|--:|--:|--:|")
        for feed in dict.fromkeys(str(one) for one in feeds()):
            print(line(bench, next(one for one in feeds() if str(one) == feed)), flush=True)


if __name__ == "__main__":
    main()
