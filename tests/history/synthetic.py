"""Made-up nights: a table of cells x figures with known noise, and what is planted in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd

from parity.history.widths import HALF_WIDTHS
from parity.nightly.metrics import of_cell as metrics_of_cell
from parity.nightly.records import Axes, Cell, CellResult, Metric, Night

START = datetime(2026, 10, 1, 2, tzinfo=UTC)
STAGES = [f"target.layers.{layer}.{part}" for layer in range(4) for part in ("attn_out", "ffn_out", "out")]
STAGES += ["target.logits", "drafter.fc_out"]
UNITS = {"l2": "x noise", "worst_row": "x noise", "scale": "standard errors", "bias": "standard errors"}
LEVELS = {"l2": 0.9, "worst_row": 1.5, "scale": 0.3, "bias": 0.2}
BOUNDS = {"l2": 1.5, "worst_row": 3.0, "scale": 5.0, "bias": 5.0}
SINGLE = (("acceptance", "chained", "relative", "relative", 0.0), ("speed", "", "over_baseline", "ratio", 1.45))
KINDS = {"same": 0.1, "normal": 0.4, "student": 0.2, "neighbours": 0.1, "outliers": 0.1, "flips": 0.1}
"""What a series' nights are like in a cell that does not repeat, and how many of the series are. Every third cell repeats bit
for bit, speed apart, as a CPU does."""


@dataclass
class World:
    """Figures of some cells over some nights.

    Attributes:
        keys: (cell, stage, mode, metric, unit) of each series.
        values: [T, S], to plant something in.
        noise: [S] the standard deviation of a night, in the figure's unit.
    """

    nights: int
    keys: list[tuple[str, str, str, str, str]]
    values: np.ndarray
    noise: np.ndarray
    kinds: list[str]
    verdicts: dict[tuple[int, str], str] = field(default_factory=dict)

    def column(self, cell: str, stage: str, mode: str, metric: str) -> int:
        """Number of a series."""
        return next(place for place, key in enumerate(self.keys) if key[:4] == (cell, stage, mode, metric))

    def name(self, night: int) -> str:
        """Of a night."""
        return f"{START + timedelta(days=night):%Y%m%dT%H%M%S}.000"

    def date(self, night: int) -> str:
        """Of a night."""
        return f"{START + timedelta(days=night):%Y-%m-%d}"

    def commit(self, night: int) -> str:
        """Of a night."""
        return f"{night:07x}"


def cells(count: int) -> list[str]:
    """Names of cells."""
    return [f"case{number}.numpy.peagle.k4.tp1.bfloat16" for number in range(count)]


def world(seed: int, nights: int = 30, count: int = 12) -> World:
    """Clean nights: bit for bit the same, normal, heavy-tailed, like their neighbour, with outliers, or of two values.

    Noise goes from far below the least width of a band to three times that.
    """
    random = np.random.default_rng(seed)
    mine = [(stage, mode, metric, UNITS[metric]) for mode in ("local", "chained") for stage in STAGES for metric in UNITS]
    mine += [one[:4] for one in SINGLE]
    keys = [(cell, *one) for cell in cells(count) for one in mine]
    centre = np.array([LEVELS.get(key[3], SINGLE[key[3] == "over_baseline"][4]) for key in keys]) * random.uniform(0.8, 1.2, len(keys))
    width = np.array([_width(key, level) for key, level in zip(keys, centre, strict=True)])
    kinds = [str(kind) for kind in random.choice(list(KINDS), len(keys), p=list(KINDS.values()))]
    repeating = set(cells(count)[::3])
    kinds = ["same" if key[0] in repeating else kind for key, kind in zip(keys, kinds, strict=True)]
    kinds = ["normal" if key[1] == "speed" else kind for key, kind in zip(keys, kinds, strict=True)]
    noise = width * np.exp(random.uniform(np.log(0.02), np.log(3), len(keys)))
    drawn = np.stack([_drawn(kind, nights, random) for kind in kinds], axis=1)
    return World(nights, keys, centre + noise * drawn, noise, kinds)


def _width(key: tuple, level: float) -> float:
    found = HALF_WIDTHS[key[3]][key[2], key[4]]
    return max(found.absolute, found.share * abs(level))


def _drawn(kind: str, nights: int, random: np.random.Generator) -> np.ndarray:
    normal = random.standard_normal(nights)
    if kind == "same":
        return np.zeros(nights)
    if kind == "student":
        return random.standard_t(3, nights) / np.sqrt(3)
    if kind == "neighbours":
        for night in range(1, nights):
            normal[night] = 0.4 * normal[night - 1] + np.sqrt(1 - 0.16) * normal[night]
    if kind == "outliers":
        normal *= np.where(random.random(nights) < 0.05, 10, 1)
    if kind == "flips":
        return np.where(random.random(nights) < random.uniform(0.1, 0.5), -1.0, 1.0)
    return normal


def frame(made: World, last: int | None = None, cells: list[str] | None = None) -> pd.DataFrame:
    """The table as `load` gives it, up to and with night `last`."""
    nights = made.nights if last is None else last + 1
    keys = [key for key in made.keys if cells is None or key[0] in cells]
    places = [place for place, key in enumerate(made.keys) if cells is None or key[0] in cells]
    count = len(keys)

    def nightly(values):
        return pd.Categorical.from_codes(np.repeat(np.arange(nights), count), categories=values)

    def keyed(values):
        codes, names = pd.factorize(np.array(values, object))
        return pd.Categorical.from_codes(np.tile(codes, nights), categories=names)

    values = made.values[:nights, places].ravel()
    verdict = [made.verdicts.get((night, key[0]), "pass") for night in range(nights) for key in keys]
    relative = np.tile([key[3] == "relative" for key in keys], nights)
    found = {name: keyed([key[place] for key in keys]) for place, name in enumerate(("cell", "stage", "mode", "metric", "unit"))}
    found |= {"night": nightly([made.name(night) for night in range(nights)])}
    found["started"] = np.repeat([pd.Timestamp(START + timedelta(days=night)) for night in range(nights)], count)
    found["date"] = nightly([made.date(night) for night in range(nights)])
    found["commit"] = nightly([made.commit(night) for night in range(nights)])
    found |= {"dirty": False, "device_spec": "numpy", "machine": "x86_64, 2 cores", "value": values, "verdict": "pass", "cell_verdict": pd.Categorical(verdict)}
    found["better"] = keyed(["higher" if key[3] in ("relative", "over_baseline") else "lower" for key in keys])
    found["bound"] = np.tile([BOUNDS.get(key[3], np.nan) for key in keys], nights)
    found |= {"low": np.where(relative, values - 0.02, np.nan), "high": np.where(relative, values + 0.02, np.nan)}
    return pd.DataFrame(found)


def night(made: World, number: int) -> Night:
    """The plan of a made-up night."""
    return Night(
        name=made.name(number),
        started=(START + timedelta(days=number)).isoformat(),
        commit=made.commit(number),
        dirty=False,
        matrix="made.toml",
        matrix_digest="0" * 64,
        engine="local",
        machine="x86_64, 2 cores",
        cells=(),
    )


def results(made: World, number: int) -> list[CellResult]:
    """What the cells of a made-up night found."""
    found: dict[str, list[Metric]] = {}
    for (cell, stage, mode, name, unit), value in zip(made.keys, made.values[number], strict=True):
        better = "higher" if name in ("relative", "over_baseline") else "lower"
        limits = dict(low=value - 0.02, high=value + 0.02) if name == "relative" else {}
        one = Metric(stage=stage, mode=mode, name=name, value=value, unit=unit, better=better, verdict="pass", bound=BOUNDS.get(name), **limits)
        found.setdefault(cell, []).append(one)
    return [_result(made, number, cell, metrics) for cell, metrics in found.items()]


def _result(made: World, number: int, name: str, metrics: list[Metric]) -> CellResult:
    case, device, family, k, tp, policy = name.split(".")
    axes = Axes(case=case, device=device, family=family, k=int(k[1:]), tp=int(tp[2:]), policy=policy)
    cell = Cell(axes=axes, target="t", drafter="d", prompts="p", max_new_tokens=8, device="numpy", gates=())
    verdict = made.verdicts.get((number, name), "pass")
    head = metrics_of_cell(verdict, 1.0)
    return CellResult(night=made.name(number), cell=cell, verdict=verdict, started="", seconds=1.0, metrics=(*head, *metrics))
