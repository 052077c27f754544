"""The recorded night, and a history made up around it: a step in the drafter's taps three nights ago."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from parity.nightly.folder import NightFolder
from parity.nightly.records import CellResult
from parity.reports.page.night import NightView, make_view
from parity.reports.page.past import Past, past_from
from parity.reports.page.trends import FIGURES

RECORDED = Path(__file__).parents[2] / "fixtures" / "nights" / "small.zip"
BEFORE, SINCE = 20, 17
"""Nights made up before the recorded one, and the first of them with the step."""
RED = "chat.numpy.peagle.k4.tp1.bfloat16"
KEPT = {"l2", *(metric for _, metric in FIGURES)}


def unpack(folder: Path) -> NightFolder:
    """The recorded night as a folder."""
    with zipfile.ZipFile(RECORDED) as archive:
        archive.extractall(folder)
    return NightFolder(folder)


@dataclass(frozen=True)
class Change:
    """`parity.history.Change`, as far as a page reads it."""

    cell: str
    stage: str
    mode: str
    metric: str
    kind: str
    since_night: str
    since_date: str
    commits: tuple[str, str]
    before: float
    after: float
    band: tuple[float, float]
    nights: int
    sentence: str


def name(number: int) -> str:
    """The name of a made-up night; the last one is the recorded night's."""
    return f"202611{number + 1:02d}T020000.000"


def history(results: tuple[CellResult, ...]) -> pd.DataFrame:
    """A table of BEFORE nights and the recorded one, with the columns a page reads."""
    rng, rows = np.random.default_rng(0), []
    for number in range(BEFORE + 1):
        for result in results:
            for one in result.metrics:
                if one.name in KEPT:
                    stepped = result.verdict == "fail" and one.stage == "drafter.taps" and number < SINCE
                    value = 0.98 if stepped else one.value
                    row = dict(cell=result.cell.name, stage=one.stage, mode=one.mode, metric=one.name, unit=one.unit)
                    rows.append(
                        row | dict(night=name(number), started=name(number), value=value * (1 + 0.01 * rng.normal()))
                    )
    frame = pd.DataFrame(rows)
    return frame.astype(dict.fromkeys(("cell", "stage", "mode", "metric", "unit", "night"), "category"))


def step(kind: str = "regression", **changes) -> Change:
    """What history says of the step."""
    found = dict(
        cell=RED, stage="drafter.taps", mode="local", metric="l2", kind=kind, since_night=name(SINCE),
        since_date="2026-11-18", commits=("1" * 7, "2" * 7), before=0.98, after=220.0, band=(0.9, 1.06), nights=4,
        sentence=f"{RED}: l2 of drafter.taps is worse since 2026-11-18",
    )  # fmt: skip
    return Change(**found | changes)


def past(folder: NightFolder, *changes: Change, waiting: dict[str, int] | None = None) -> Past:
    """History around the recorded night."""
    cells = [cell.name for cell in folder.night.cells]
    return past_from(history(folder.results()), changes, waiting or {}, folder.night.name, cells)


@cache
def told(folder: Path) -> NightView:
    """The recorded night with its step and an improvement."""
    night = unpack(folder)
    better = step("improvement", stage="speed", mode="", metric="over_plain", sentence="speed over_plain is better")
    return make_view(night.night, night.results(), past(night, step(), better))
