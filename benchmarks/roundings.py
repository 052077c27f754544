"""How much of its errors each further bfloat16 pass behind a floor draws anew, in the prompts of a chained run.

    python benchmarks/roundings.py GOLDEN RUN [--prompt 0] [--passes 5] [--order-alone]

Printed for each pass behind the first: the elements that differ from the first pass, and the median correlation of a
row's error with the first pass' error in the same row. `--order-alone` keeps the nearest rounding, as it was once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

HOUSE = Path(__file__).resolve().parents[1]
sys.path[0] = str(HOUSE)  # or this file would be found under the package's name

from parity.api import open_golden  # noqa: E402
from parity.golden.store import Dump  # noqa: E402
from parity.references import rerun, roundings  # noqa: E402
from parity.trace import Tensors  # noqa: E402

pooled = roundings.pooled


def told(truth: Tensors, passes: Iterable[Tensors]) -> Tensors:
    """Compare each pass with the first, and pool them as ever."""
    first, *others = passes
    places = [place for place in first if first[place].dtype.kind not in "iub"]
    for number, other in enumerate(others, 1):
        differ = sum(int((first[place] != other[place]).sum()) for place in places)
        every = sum(first[place].size for place in places)
        alike = np.concatenate([correlations(truth[place], first[place], other[place]) for place in places])
        print(
            f"pass {number}: {differ} of {every} elements differ, errors of a row correlate by {np.median(alike):.2f}"
        )
    return pooled(truth, (first, *others))


def correlations(truth: np.ndarray, *passes: np.ndarray) -> np.ndarray:
    """Of the errors [R, ...] of two passes, row by row: float64 [R], without rows that are right in either."""
    rows = [(one.astype(np.float64) - truth).reshape(len(truth), -1) for one in passes]
    sizes = np.prod([np.linalg.norm(one, axis=1) for one in rows], axis=0)
    return (rows[0] * rows[1]).sum(axis=1)[sizes > 0] / sizes[sizes > 0]


def main() -> None:
    """Run the prompt's bfloat16 reference so often."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("golden", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--prompt", type=int, default=0)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--order-alone", action="store_true")
    options = parser.parse_args()
    if options.order_alone:
        roundings._by_chance = lambda *_: None
    rerun.pooled = told
    with TemporaryDirectory(prefix="parity-roundings-") as folder:
        asked = [options.prompt], Path(folder) / "golden"
        rerun.rerun(open_golden(options.golden), Dump(options.run), *asked, roundings=options.passes)


if __name__ == "__main__":
    main()
