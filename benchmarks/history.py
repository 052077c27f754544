"""How often the verdicts on history are wrong, and how little they find: made-up nights, seeded.

    python benchmarks/history.py alarms [--seeds 200] [--cells 12] [--first 0] [--jobs 1] [--no-again] [--held 0]
    python benchmarks/history.py power [--seeds 5] [--no-again]
    python benchmarks/history.py hits [--seeds 3] [--no-again]

`alarms` judges every one of thirty clean nights and counts nights with a regression, drift or improvement that was not
there the night before. `power` plants a step, or a drift, into one figure of each cell and says how large it has to be
to be found in nine of ten, in standard deviations of the figure's nights, and how often its date is right. `hits`
plants the steps of the goal (5 deviations one night before, 3 three nights before) and says how many are found. Noise:
tests/history/synthetic.py. Cells are measured again within a night as `parity nightly` does, not with --no-again.
--held: the share of normal noise that a night holds, the same in all of its repeats; neighbours that are alike are held
whole.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter

sys.path[0] = str(Path(__file__).parents[1])

import numpy as np  # noqa: E402

from parity.history import Change, gathered  # noqa: E402
from parity.history.figures import figure_changes  # noqa: E402
from parity.history.repeats import MOST, another  # noqa: E402
from parity.history.series import HALF_WIDTHS, Series, quiet, series, stamps  # noqa: E402
from parity.history.statistics import NEEDED  # noqa: E402
from tests.history.synthetic import KINDS, World, frame, world  # noqa: E402

NIGHTS = 30
GOAL = ((5, 1), (3, 3))
"""Steps in standard deviations, and after how many nights they are to be found."""
LOUD = ("regression", "drift", "improvement")


class Nights:
    """Made-up nights as history has them, measured again as `parity nightly` would; `drawn` counts the repeats."""

    def __init__(self, made: World, again: bool):
        table = frame(made)
        self.made, self.stamps = made, stamps(table, made.name(made.nights - 1))
        self.whole = series(table, self.stamps)
        self.cells = self.whole.cells
        self.parts = {name: self._part(places) for name, places in self.cells.items()}
        self.again = np.full((MOST, *made.values.shape), np.nan)
        self.drawn = 0
        for night in range(made.nights if again else 0):
            for name in self.cells:
                self._measure(name, night)

    def _part(self, places: np.ndarray) -> Series:
        whole = self.whole
        cut = {name: getattr(whole, name)[places] for name in ("sign", "absolute", "share", "quiet", "bound")}
        return replace(
            whole,
            keys=[whole.keys[one] for one in places],
            values=whole.values[:, places],
            unit=[whole.unit[one] for one in places],
            **cut,
        )

    def _measure(self, cell: str, night: int) -> None:
        places, had = self.cells[cell], 0
        while another(self._cut(self.parts[cell], self.again[:, :, places], night), len(self.cells)):
            self.again[had, night, places] = self.made.repeat(had, night)[places]
            had += 1
        self.drawn += had

    def _cut(self, whole: Series, again: np.ndarray, night: int) -> Series:
        again = again[:, : night + 1]
        return replace(whole, stamps=self.stamps[: night + 1], values=whole.values[: night + 1], again=again)

    def changes(self, night: int) -> list[Change]:
        """What the figures of a night show; verdicts of cells have no noise and are left out."""
        whole = replace(self.whole, quiet=quiet(self.whole.keys, self.whole.values[: night + 1]))
        return [one for one in gathered(figure_changes(self._cut(whole, self.again, night))) if one.kind in LOUD]


def clean_nights(cells: int, again: bool, held: float, seed: int) -> tuple[int, int, list[tuple[int, str, str]]]:
    """Figures, repeats, and each first alarm of thirty clean nights: night, kind of change, kind of noise."""
    made, seen, found = world(seed, NIGHTS, cells, held), set(), []
    nights = Nights(made, again)
    for night in range(NEEDED, NIGHTS):
        for one in nights.changes(night):
            key = (one.cell, one.stage, one.mode, one.metric, one.kind)
            if key not in seen:
                seen.add(key)
                found.append((night, one.kind, made.kinds[made.column(*key[:4])]))
    return len(made.keys), nights.drawn, found


def alarms(given: argparse.Namespace) -> None:
    """Count, and print."""
    began, seeds = perf_counter(), range(given.first, given.first + given.seeds)
    with ProcessPoolExecutor(given.jobs) as pool:
        results = list(pool.map(partial(clean_nights, given.cells, given.again, given.held), seeds))
    found = [one for *_, mine in results for one in mine]
    nights = given.seeds * (NIGHTS - NEEDED)
    bad = len({(seed, night) for seed, (*_, mine) in zip(seeds, results, strict=True) for night, *_ in mine})
    print(
        f"{given.seeds} seeds x {NIGHTS} nights x {results[0][0]} figures: {nights} nights judged "
        f"({NEEDED} are needed first), {perf_counter() - began:.0f} s"
    )
    print(
        f"nights with a false alarm: {bad} ({bad / nights:.3%}); "
        f"runs of thirty nights with one: {sum(bool(mine) for *_, mine in results)} of {given.seeds}"
    )
    print(
        "by kind of noise:",
        dict(Counter(noise for *_, noise in found)),
        "by kind of change:",
        dict(Counter(kind for _, kind, _ in found)),
    )
    print(
        f"repeats: {sum(drawn for _, drawn, _ in results) / (given.seeds * NIGHTS * given.cells):.2f} a cell and night"
    )


def chosen_places(made: World, noise: str) -> list[int]:
    """The noisiest figure of every cell with such noise, in least widths of its band, and not below half of one."""
    chosen, loud = {}, {}
    for place, (cell, _, mode, metric, unit) in enumerate(made.keys):
        loud[place] = (
            made.noise[place] / HALF_WIDTHS[metric][mode, unit].absolute if metric in ("l2", "worst_row") else 0.0
        )
        if made.kinds[place] == noise and loud[place] > max(0.5, loud[chosen[cell]] if cell in chosen else 0):
            chosen[cell] = place
    return list(chosen.values())


def planted(kind: str, noise: str, size: float, seed: int, after: int, again: bool = True) -> list[int | None]:
    """A step or drift of this many standard deviations in the noisiest figure of every cell with such noise.

    Noisiest beside the least width of its band, which else is what counts, and not below half of it.

    Returns for each cell the error of the date in nights; None where it is not found.
    """
    made, nights = world(seed, NIGHTS, 12), np.arange(NIGHTS)
    chosen = chosen_places(made, noise)
    shape = nights >= NIGHTS - after if kind == "step" else nights / (NIGHTS - 1)
    for place in chosen:
        made.plant(place, made.noise[place] * size * shape)
    found = {
        (one.cell, one.stage, one.mode, one.metric): one
        for one in Nights(made, again).changes(NIGHTS - 1)
        if one.kind in ("regression", "drift")
    }
    names = {made.name(night): night for night in range(NIGHTS)}
    ends = (found.get(made.keys[place][:4]) for place in chosen)
    return [None if one is None else abs(names[one.since_night] - (NIGHTS - after)) for one in ends]


SIZES = (2, 2.5, 3, 3.5, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 60, 100, 200, 400, 1000)


def smallest(kind: str, noise: str, after: int, seeds: int, again: bool) -> tuple[float, float]:
    """The smallest of `SIZES` that is found in nine of ten, and the share of its dates within a night of the truth."""
    low, high, dated = 0, len(SIZES), 0.0
    while low < high:
        middle = (low + high) // 2
        ends = [one for seed in range(seeds) for one in planted(kind, noise, SIZES[middle], seed, after, again)]
        hits = [one for one in ends if one is not None]
        if len(hits) >= 0.9 * len(ends):
            high, dated = middle, float(np.mean([one <= 1 for one in hits]))
        else:
            low = middle + 1
    return SIZES[low] if low < len(SIZES) else float("inf"), dated


def power(given: argparse.Namespace) -> None:
    """Measure, and print as a table."""
    print(
        "| noise | a step, 1 night after | 2 nights | 3 nights | 5 nights | 7 nights | 10 nights "
        "| dates within a night | a drift over 30 nights |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for noise in KINDS:
        if noise == "same":
            continue
        steps = [smallest("step", noise, after, given.seeds, given.again) for after in (1, 2, 3, 5, 7, 10)]
        drift, _ = smallest("drift", noise, NIGHTS, given.seeds, given.again)
        print(
            f"| {noise} | {' | '.join(f'{size:g}' for size, _ in steps)} | {steps[-1][1]:.0%} | {drift:g} |", flush=True
        )


def hits(given: argparse.Namespace) -> None:
    """Steps of the goal that are found, of those planted, by kind of noise, and how many dates are within a night."""
    for noise in KINDS:
        for size, after in GOAL if noise != "same" else ():
            ends = [
                one for seed in range(given.seeds) for one in planted("step", noise, size, seed, after, given.again)
            ]
            found = [one for one in ends if one is not None]
            dated = sum(one <= 1 for one in found)
            share = f"{len(found)} of {len(ends)}, {dated} dated within a night"
            print(f"{noise}: a step of {size} after {after} nights: {share}", flush=True)


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("alarms", "power", "hits"))
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cells", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--no-again", dest="again", action="store_false")
    parser.add_argument("--held", type=float, default=0.0)
    given = parser.parse_args()
    given.seeds = given.seeds or {"alarms": 200, "power": 5, "hits": 3}[given.what]
    {"alarms": alarms, "power": power, "hits": hits}[given.what](given)


if __name__ == "__main__":
    main()
