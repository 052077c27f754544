"""What the two widest allowances cost: noise squared in a scale's standard error, and seven times noise for a choice.

    python benchmarks/bounds.py --golden DIR RUN [RUN ...]

Scale, over every stage of numbers of clean runs: the largest scale in standard errors (bound 5), and at how many stages
a scale of 1.001 is seen, the square of the floor's noise counting with a coefficient of 0, 0.5 and 1.
Choices, over every row of the golden: the share of wrong choices (the runner-up taken for the last one chosen) that is
called a tie or noise, at five, six and seven times the row's noise.
"""

import argparse
from math import hypot
from pathlib import Path

import numpy as np

from parity.compare.choices import row_noise, ulp
from parity.compare.rows import stage_rows
from parity.compare.scores import SCORES
from parity.compare.statistics import LEAST, SIGMAS, LineFit, fit
from parity.golden.store import Dump

COEFFICIENTS = (0.0, 0.5, 1.0)
MULTIPLES = (5, 6, 7)
PLANTED = 1.001


def scale_beyond(device: LineFit, floor: LineFit, coefficient: float) -> float:
    """The device's scale beyond the floor's own, in standard errors; see `parity.compare.statistics.beyond`."""
    error = max(hypot(device.scale_error, floor.scale_error), LEAST, coefficient * floor.noise**2)
    return max(abs(device.scale) - abs(floor.scale), 0.0) / error


def scales(golden: Dump, run: Dump) -> None:
    """Print one run's clean maximum and its power, for each coefficient."""
    clean = {coefficient: [] for coefficient in COEFFICIENTS}
    seen = dict.fromkeys(COEFFICIENTS, 0)
    names = [name for name in golden.manifest.stages if not golden.declared[name].stage.exact]
    for name in names:
        rows = stage_rows(golden, run, golden.declared[name])
        floor = fit(rows.golden, rows.floor)
        mine = fit(rows.golden, rows.device)
        planted = fit(rows.golden, rows.device.astype(np.float32) * np.float32(PLANTED))
        for coefficient in COEFFICIENTS:
            clean[coefficient].append((scale_beyond(mine, floor, coefficient), name))
            seen[coefficient] += scale_beyond(planted, floor, coefficient) > SIGMAS
    print(f"{run.manifest.producer.name}, {run.manifest.case.mode}, {len(names)} stages")
    for coefficient in COEFFICIENTS:
        worst, name = max(clean[coefficient])
        print(
            f"  square of noise x {coefficient}: clean at most {worst:.2f} ({name}); "
            f"{PLANTED} seen at {seen[coefficient]} stages"
        )


def choices(golden: Dump) -> None:
    """Print the share of wrong choices that each multiple of a row's noise lets through."""
    groups = {stage: [(SCORES[stage], 1)] for stage in SCORES if stage in golden.manifest.stages}
    layers = [name for name in golden.manifest.stages if name.endswith(".router_logits")]
    if layers:
        experts = golden.stored("float32", 0, 0, layers[0].replace("router_logits", "experts")).shape[1]
        groups["experts"] = [(name, experts) for name in layers]
    for group, members in groups.items():
        gaps, steps = zip(*(gap(golden, *member) for member in members), strict=True)
        gaps, ties = np.concatenate(gaps), np.concatenate(steps)
        shares = ", ".join(f"{float((ties | (gaps <= multiple)).mean()):.2%}" for multiple in MULTIPLES)
        print(f"{group:24s} {len(gaps):6d} rows; ties alone {float(ties.mean()):.2%}; at {MULTIPLES} x noise {shares}")


def gap(golden: Dump, name: str, chosen: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each row [R]: from the last score chosen to the first that was not, in the row's noise; whether a tie."""
    rows = stage_rows(golden, golden, golden.declared[name], device="float32", mode="chained")
    noise = row_noise(rows)
    ordered = -np.sort(-rows.golden.astype(np.float64), axis=1)
    apart = ordered[:, chosen - 1] - ordered[:, chosen]
    return apart / noise, apart <= np.maximum(ulp(ordered[:, chosen - 1]), ulp(ordered[:, chosen]))


def main() -> None:
    """Scale for every run, then choices."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--golden", type=Path, required=True)
    options = parser.parse_args()
    golden = Dump(options.golden)
    for run in options.runs:
        scales(golden, Dump(run))
    choices(golden)


if __name__ == "__main__":
    main()
