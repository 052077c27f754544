"""The made-up nights of benchmarks/history.py judged by Apache Otava (change points by E-divisive means and a t-test).

    pip install --no-deps --target build/otava apache-otava==0.8.0
    PYTHONPATH=build/otava python benchmarks/otava.py alarms [--seeds 4]
    PYTHONPATH=build/otava python benchmarks/otava.py power [--seeds 3] [--p 1e-3]

`alarms` prints, by kind of noise, the share of clean series that its default p tells of within thirty nights, and the p
that tells of none. `power` prints how many of the planted steps a p finds. It sees whole nights; it knows no repeats.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])

import numpy as np  # noqa: E402
from otava.analysis import TTestSignificanceTester, compute_change_points  # noqa: E402
from otava.change_point_divisive.calculator import PairDistanceCalculator  # noqa: E402

from benchmarks.history import NIGHTS, chosen_places  # noqa: E402
from parity.history.statistics import NEEDED  # noqa: E402
from tests.history.synthetic import KINDS, world  # noqa: E402

DEFAULT = 0.001
NOISY = [kind for kind in KINDS if kind != "same"]


def least(values: np.ndarray) -> float:
    """The p-value of the likeliest change point."""
    whole = [slice(None)]
    candidate = PairDistanceCalculator(values).get_next_candidate(whole)
    return TTestSignificanceTester(1.0).change_point(candidate, values, whole).stats.pvalue if candidate else 1.0


def alarms(given: argparse.Namespace) -> None:
    """By kind of noise: series told of by the default, and the least p of all nights."""
    found: dict[str, list[float]] = {kind: [] for kind in NOISY}
    for seed in range(given.seeds):
        made = world(seed, NIGHTS, 12)
        for place, kind in enumerate(made.kinds):
            if kind in found:
                found[kind].append(min(least(made.values[:night, place]) for night in range(NEEDED + 1, NIGHTS + 1)))
    for kind, values in found.items():
        told = f"{np.mean(np.array(values) < DEFAULT):.1%} told of by p = {DEFAULT}; none by p = {min(values):.1g}"
        print(f"{kind}: {len(values)} clean series, {told}")


def power(given: argparse.Namespace) -> None:
    """Planted steps that are found, within a night of the truth."""
    for noise in NOISY:
        for size, after in ((5, 1), (3, 3), (5, 5), (8, 10)):
            hits = [hit for seed in range(given.seeds) for hit in _hits(noise, size, seed, after, given.p)]
            print(f"{noise}: a step of {size} after {after} nights: {sum(hits)} of {len(hits)}", flush=True)


def _hits(noise: str, size: float, seed: int, after: int, p: float) -> list[bool]:
    made = world(seed, NIGHTS, 12)
    found = []
    for place in chosen_places(made, noise):
        made.plant(place, made.noise[place] * size * (np.arange(NIGHTS) >= NIGHTS - after))
        points, _ = compute_change_points(list(made.values[:, place]), max_pvalue=p)
        found.append(any(abs(one.index - (NIGHTS - after)) <= 1 for one in points))
    return found


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("alarms", "power"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--p", type=float, default=DEFAULT)
    given = parser.parse_args()
    {"alarms": alarms, "power": power}[given.what](given)


if __name__ == "__main__":
    main()
