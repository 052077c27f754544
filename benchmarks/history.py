"""How often the verdicts on history are wrong, and how little they find: made-up nights, seeded.

    python benchmarks/history.py alarms [--seeds 200] [--cells 12] [--first 0] [--jobs 1]
    python benchmarks/history.py power [--seeds 40]

`alarms` judges every one of thirty clean nights and counts nights with a regression, drift or improvement that was not
there the night before. `power` plants one step, or one drift, into one figure of such nights and says how large it has to be
to be found in nine of ten, and how far off its date is. Noise: tests/history/synthetic.py.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np  # noqa: E402

from parity.history import Change, gathered  # noqa: E402
from parity.history.bands import NEEDED  # noqa: E402
from parity.history.figures import findings  # noqa: E402
from parity.history.series import series, stamps  # noqa: E402
from tests.history.synthetic import KINDS, World, frame, world  # noqa: E402

NIGHTS = 30
STEP_NIGHT = 20
LOUD = ("regression", "drift", "improvement")


def changes(made: World, table, night: int) -> list[Change]:
    """What the figures of a night show; verdicts of cells have no noise and are left out."""
    past = stamps(table, made.name(night))
    return [one for one in gathered(findings(series(table, past))) if one.kind in LOUD]


def clean_nights(cells: int, seed: int) -> tuple[int, list[tuple[int, str, str]]]:
    """Figures, and each first alarm of thirty clean nights: night, kind of change, kind of noise."""
    made, seen, found = world(seed, NIGHTS, cells), set(), []
    table = frame(made)
    for night in range(NEEDED, NIGHTS):
        for one in changes(made, table, night):
            key = (one.cell, one.stage, one.mode, one.metric, one.kind)
            if key not in seen:
                seen.add(key)
                found.append((night, one.kind, made.kinds[made.column(*key[:4])]))
    return len(made.keys), found


def alarms(given: argparse.Namespace) -> None:
    """Count, and print."""
    began, seeds = perf_counter(), range(given.first, given.first + given.seeds)
    with ProcessPoolExecutor(given.jobs) as pool:
        results = list(pool.map(partial(clean_nights, given.cells), seeds))
    found = [one for _, mine in results for one in mine]
    nights = given.seeds * (NIGHTS - NEEDED)
    bad = len({(seed, night) for seed, (_, mine) in zip(seeds, results, strict=True) for night, *_ in mine})
    print(f"{given.seeds} seeds x {NIGHTS} nights x {results[0][0]} figures: {nights} nights judged ({NEEDED} are needed first), {perf_counter() - began:.0f} s")
    print(f"nights with a false alarm: {bad} ({bad / nights:.3%}); runs of thirty nights with one: {sum(bool(mine) for _, mine in results)} of {given.seeds}")
    print("by kind of noise:", dict(Counter(noise for *_, noise in found)), "by kind of change:", dict(Counter(kind for _, kind, _ in found)))


def planted(kind: str, noise: str, size: float, seed: int, after: int) -> tuple[bool, int]:
    """Whether a step or drift of this many standard deviations is found, and the error of its date in nights."""
    made = world(seed, NIGHTS, 12)
    places = [place for place, one in enumerate(made.kinds) if one == noise and made.keys[place][3] in ("l2", "worst_row")]
    place = max(places, key=lambda one: made.noise[one])
    ramp = np.clip(np.arange(NIGHTS) - (NIGHTS - after) + 1, 0, None)
    made.values[:, place] += made.noise[place] * size * (np.minimum(ramp, 1) if kind == "step" else np.arange(NIGHTS) / (NIGHTS - 1))
    key = made.keys[place][:4]
    table = frame(made)
    for one in changes(made, table, NIGHTS - 1):
        if (one.cell, one.stage, one.mode, one.metric) == key and one.kind in ("regression", "drift"):
            first = next(night for night in range(NIGHTS) if made.name(night) == one.since_night)
            return True, abs(first - (NIGHTS - after))
    return False, 0


def smallest(kind: str, noise: str, after: int, seeds: int) -> tuple[float, float]:
    """The smallest size on a grid that is found in nine of ten, and the share of dates within a night of the truth."""
    for size in (2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50, 100, 200, 500):
        found = [planted(kind, noise, size, seed, after) for seed in range(seeds)]
        hits = [error for good, error in found if good]
        if len(hits) >= 0.9 * seeds:
            return size, float(np.mean([error <= 1 for error in hits]))
    return float("inf"), 0.0


def power(given: argparse.Namespace) -> None:
    """Measure, and print as a table."""
    print("| noise | a step, 1 night behind it | 2 nights | 3 nights | 5 nights | 10 nights | dates within a night (10) | a drift over 30 nights |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for noise in KINDS:
        if noise == "same":
            continue
        steps = [smallest("step", noise, after, given.seeds) for after in (1, 2, 3, 5, 10)]
        drift, _ = smallest("drift", noise, NIGHTS, given.seeds)
        print(f"| {noise} | {' | '.join(f'{size:g}' for size, _ in steps)} | {steps[-1][1]:.0%} | {drift:g} |", flush=True)


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("alarms", "power"))
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cells", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    given.seeds = given.seeds or {"alarms": 200, "power": 40}[given.what]
    {"alarms": alarms, "power": power}[given.what](given)


if __name__ == "__main__":
    main()
