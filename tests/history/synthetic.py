"""Made-up nights: a table of cells x figures with known noise, and what is planted in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd

from parity.history.repeats import MOST
from parity.history.series import HALF_WIDTHS
from parity.nightly.metrics import of_cell as metrics_of_cell
from parity.nightly.records import Cell, CellAxes, CellResult, Metric, Night

START = datetime(2026, 10, 1, 2, tzinfo=UTC)
STAGES = [f"target.layers.{layer}.{part}" for layer in range(4) for part in ("attn_out", "ffn_out", "out")]
STAGES += ["target.logits", "drafter.fc_out"]
UNITS = {"l2": "x noise", "worst_row": "x noise", "scale": "standard errors", "bias": "standard errors"}
LEVELS = {"l2": 0.9, "worst_row": 1.5, "scale": 0.3, "bias": 0.2}
BOUNDS = {"l2": 1.5, "worst_row": 3.0, "scale": 5.0, "bias": 5.0}
SINGLE = (("acceptance", "chained", "relative", "relative", 0.0), ("speed", "", "over_baseline", "ratio", 1.45))
KINDS = {"same": 0.1, "normal": 0.4, "student": 0.2, "neighbours": 0.1, "outliers": 0.1, "flips": 0.1}
"""What a series' nights are like in a cell that does not repeat, and how many of the series are. Every third cell
repeats bit for bit, speed apart, as a CPU does."""


@dataclass
class World:
    """Figures of some cells over some nights.

    Attributes:
        keys: (cell, stage, mode, metric, unit) of each series.
        values: [T, S], to plant something in.
        noise: [S] the standard deviation of a night, in the figure's unit.
        level: [T, S] what the figures would be without noise.
        again: [R, T, S] noise of the repeats of each night, in standard deviations.
    """

    nights: int
    keys: list[tuple[str, str, str, str, str]]
    values: np.ndarray
    noise: np.ndarray
    kinds: list[str]
    level: np.ndarray
    again: np.ndarray
    verdicts: dict[tuple[int, str], str] = field(default_factory=dict)

    def column(self, cell: str, stage: str, mode: str, metric: str) -> int:
        """Number of a series."""
        return next(place for place, key in enumerate(self.keys) if key[:4] == (cell, stage, mode, metric))

    def plant(self, place: int, shape: np.ndarray) -> None:
        """Add this much, [T], to every measurement of a series."""
        self.values[:, place] += shape
        self.level[:, place] += shape

    def repeat(self, number: int, night: int) -> np.ndarray:
        """[S] what the cells find when they are measured again, for the `number`-th time that night."""
        return self.level[night] + self.noise * self.again[number, night]

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


HELD_BY_NIGHT = {"neighbours": 1.0}
"""The share of a kind's variance that a night holds: the same in all of its repeats. The other kinds draw anew."""


def world(seed: int, nights: int = 30, count: int = 12, held: float = 0.0) -> World:
    """Clean nights: bit for bit the same, normal, heavy-tailed, like their neighbour, with outliers, or of two values.

    Noise goes from far below the least width of a band to three times that. `held`: the share of normal noise that a
    night holds.
    """
    random = np.random.default_rng(seed)
    mine = [
        (stage, mode, metric, UNITS[metric]) for mode in ("local", "chained") for stage in STAGES for metric in UNITS
    ]
    mine += [one[:4] for one in SINGLE]
    keys = [(cell, *one) for cell in cells(count) for one in mine]
    centre = np.array([LEVELS.get(key[3], SINGLE[key[3] == "over_baseline"][4]) for key in keys]) * random.uniform(
        0.8, 1.2, len(keys)
    )
    width = np.array([_width(key, level) for key, level in zip(keys, centre, strict=True)])
    kinds = [str(kind) for kind in random.choice(list(KINDS), len(keys), p=list(KINDS.values()))]
    repeating = set(cells(count)[::3])
    kinds = ["same" if key[0] in repeating else kind for key, kind in zip(keys, kinds, strict=True)]
    kinds = ["normal" if key[1] == "speed" else kind for key, kind in zip(keys, kinds, strict=True)]
    noise = width * np.exp(random.uniform(np.log(0.02), np.log(3), len(keys)))
    drawn = np.stack([_drawn(kind, nights, random) for kind in kinds], axis=1)
    again = np.random.default_rng([seed, 1])
    repeats = np.stack([_again(kind, drawn[:, place], held, again) for place, kind in enumerate(kinds)], axis=2)
    if held:
        drawn = np.where(
            np.array(kinds) == "normal",
            np.sqrt(held) * drawn + np.sqrt(1 - held) * again.standard_normal(drawn.shape),
            drawn,
        )
    return World(nights, keys, centre + noise * drawn, noise, kinds, np.tile(centre, (nights, 1)), repeats)


def _again(kind: str, nights: np.ndarray, held: float, random: np.random.Generator) -> np.ndarray:
    """[R, T] repeats of one series' nights."""
    share = {**HELD_BY_NIGHT, "normal": held}.get(kind, 0.0)
    if kind == "flips":  # how often each of the two is met is the series' own
        return np.where(random.random((MOST, len(nights))) < np.mean(nights < 0), -1.0, 1.0)
    drawn = np.stack([_drawn(kind, len(nights), random) for _ in range(MOST)])
    return np.sqrt(share) * nights + np.sqrt(1 - share) * drawn


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
    found = {
        name: keyed([key[place] for key in keys])
        for place, name in enumerate(("cell", "stage", "mode", "metric", "unit"))
    }
    found |= {"night": nightly([made.name(night) for night in range(nights)])}
    found["started"] = np.repeat([pd.Timestamp(START + timedelta(days=night)) for night in range(nights)], count)
    found["date"] = nightly([made.date(night) for night in range(nights)])
    found["commit"] = nightly([made.commit(night) for night in range(nights)])
    found |= {
        "dirty": False,
        "device_spec": "numpy",
        "machine": "x86_64, 2 cores",
        "golden": "",
        "left_out": "",
        "value": values,
        "verdict": "pass",
        "cell_verdict": pd.Categorical(verdict),
    }
    found["better"] = keyed(["higher" if key[3] in ("relative", "over_baseline") else "lower" for key in keys])
    found["bound"] = np.tile([BOUNDS.get(key[3], np.nan) for key in keys], nights)
    found["repeat"] = np.zeros(nights * count, np.int16)
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
        one = Metric(
            stage=stage,
            mode=mode,
            name=name,
            value=value,
            unit=unit,
            better=better,
            verdict="pass",
            bound=BOUNDS.get(name),
            **limits,
        )
        found.setdefault(cell, []).append(one)
    return [_result(made, number, cell, metrics) for cell, metrics in found.items()]


def _result(made: World, number: int, name: str, metrics: list[Metric]) -> CellResult:
    case, device, family, k, tp, policy = name.split(".")
    axes = CellAxes(case=case, device=device, family=family, k=int(k[1:]), tp=int(tp[2:]), policy=policy)
    cell = Cell(axes=axes, target="t", drafter="d", prompts="p", max_new_tokens=8, device="numpy", gates=())
    verdict = made.verdicts.get((number, name), "pass")
    head = metrics_of_cell(verdict, 1.0)
    return CellResult(
        night=made.name(number), cell=cell, verdict=verdict, started="", seconds=1.0, metrics=(*head, *metrics)
    )
