"""Bounds that only tighten: lower ones for a policy where history allows them, and the file with them written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.compare.report import PASS
from parity.errors import Inconclusive, UsageError
from parity.policy import Policy, Row

if TYPE_CHECKING:
    import pandas as pd

NIGHTS = 14
MARGIN = 1.25
"""Over the largest clean value and over one noise floor: the nights of a CPU are one night many times over, and say
nothing of another machine's roundings."""

CALIBRATED_MARGIN = 1.1
"""Over the clean maximum of `parity calibrate`: that was met over devices, prompts and cases shorter than a night's."""

WORTH = 0.05
"""A bound is moved by at least this share: less is no news and makes a diff."""

CALIBRATED = {
    "l2": {"local": 0.99, "chained": 1.16},
    "worst_row": {"local": 1.82, "chained": 2.80},
    "largest": {"local": 1.95, "chained": 2.97},
    "worst_column": {"local": 1.12, "chained": 2.03},
}
"""Clean maxima, x noise: the largest of 1,008 comparisons and of those of docs/calibration.md; of columns the last."""

LEVELS = ("scale", "bias")
"""In standard errors a bound is a level of significance and no size: a lower one only alarms more often."""

PLAIN = {"l2": 1e-6, "worst_row": 6.4e-6, "scale": 3e-7, "bias": 2.4e-7, "largest": 1.7e-5}
"""The least bounds of a float32 device: twice the half width of its bands, which a harmless change moves it by."""


@dataclass(frozen=True)
class Proposal:
    """One statistic of one row of a policy.

    Attributes:
        row: number of the row in the file.
        old, new: the bound that passes; the same where nothing is proposed.
        largest: largest clean value of the nights, NaN where there are none; `where` it was met.
        nights: nights that every series of the row has a clean value of, of those asked for.
        why: what set the new bound, or why there is none.
    """

    row: int
    stages: str
    statistic: str
    old: float
    new: float
    largest: float
    where: str
    nights: int
    why: str

    @property
    def tighter(self) -> bool:
        """Whether a lower bound is proposed."""
        return self.new < self.old


def proposals(
    policy: Policy, frame: pd.DataFrame, nights: int = NIGHTS, calibration: Path | None = None
) -> list[Proposal]:
    """Every bound of the policy, with a lower one where the last nights allow it; never a higher one.

    Args:
        frame: history of the cells that this policy judges (`labelled`).
        calibration: what `parity calibrate --json` wrote for this device; the tiny pair's figures where None.

    Raises:
        Inconclusive: a figure stands in a regression or drift, or a cell is broken: what is clean is not known.
        UsageError: fewer than `NIGHTS` nights are asked for, or the calibration cannot be read.
    """
    if nights < NIGHTS:
        raise UsageError(f"--nights {nights}: a bound is lowered on {NIGHTS} nights at the least")
    _settled(frame)
    least = _least(calibration)
    frame = frame[frame["repeat"] == 0]
    latest = frame.drop_duplicates("night")["night"].iloc[-nights:]
    recent = frame[frame["night"].isin(latest) & frame["bound"].notna()]
    groups = _by_row(policy, recent)
    return [
        _proposal(policy, number, name, groups.get((number, name)), nights, least)
        for number, row in enumerate(policy.rows)
        for name in row.bounds
    ]


def labelled(frame: pd.DataFrame, label: str) -> pd.DataFrame:
    """The rows of cells whose policy has this label in the matrix.

    Raises:
        Inconclusive: there are none.
    """
    rows = frame[frame["policy"] == label]
    if rows.empty:
        labels = ", ".join(sorted(map(str, frame["policy"].unique())))
        raise Inconclusive(f"history has no cell under policy {label}, but {labels}; name one with --label")
    return rows.reset_index(drop=True)


def _settled(frame: pd.DataFrame) -> None:
    from parity.history import verdicts

    night = str(frame["night"].iloc[-1])
    for change in verdicts(frame, night):
        if change.kind in ("regression", "drift", "broken"):
            raise Inconclusive(f"no bound is proposed while a {change.kind} stands: {change.sentence}")


def _by_row(policy: Policy, recent: pd.DataFrame) -> dict[tuple[int, str], pd.DataFrame]:
    """The figures that each row judges, by row number and statistic."""
    names = recent[["stage", "mode"]].drop_duplicates()
    keys = [key for key in zip(names["stage"], names["mode"], strict=True) if key[1] and is_stage(key[0])]
    rows = {key: policy.rows.index(policy.row(*map(str, key))) for key in keys}
    places = [rows.get(key, -1) for key in zip(recent["stage"], recent["mode"], strict=True)]
    recent = recent.assign(row=places)
    return {
        (int(row), str(name)): figures
        for (row, name), figures in recent[recent["row"] >= 0].groupby(["row", "metric"], observed=True)
    }


def is_stage(name: str) -> bool:
    """Whether a figure is a stage's, and so a policy's business."""
    return not name.startswith(("acceptance", "decisions", "speed", "bench", "cell"))


def _proposal(
    policy: Policy,
    number: int,
    name: str,
    figures: pd.DataFrame | None,
    nights: int,
    least: dict[tuple[str, str], float],
) -> Proposal:
    row = policy.rows[number]
    old = row.bounds[name].ok
    kept = Proposal(
        row=number, stages=row.stages, statistic=name, old=old, new=old, largest=math.nan, where="", nights=0, why=""
    )
    if row.judge == "noise" and name in LEVELS:
        return replace(kept, why="a level of significance is not lowered")
    if figures is None:
        return replace(kept, why="no cell of history is judged by it")
    is_clean = (figures["cell_verdict"] == PASS) & (figures["verdict"] == PASS)
    clean = figures[is_clean]
    counts = figures.assign(clean=is_clean).groupby(["cell", "stage", "mode"], observed=True)["clean"].sum()
    have = int(counts.min())
    if clean.empty or have < nights:
        return replace(kept, nights=have, why=f"{nights - have} more clean nights are needed")
    top = clean.loc[clean["value"].idxmax()]
    largest, where = float(top["value"]), f"{top['stage']} ({top['mode']}) of {top['cell']}"
    new, why = _bound(row, name, largest, set(map(str, figures["mode"])), least)
    if new > old * (1 - WORTH):
        new, why = old, f"as low as it may be: {why}" if new >= old else f"{new:g} would be no news"
    return replace(kept, new=new, largest=largest, where=where, nights=have, why=why)


def _bound(
    row: Row, name: str, largest: float, modes: set[str], least: dict[tuple[str, str], float]
) -> tuple[float, str]:
    """The lowest bound that history and calibration both leave room for, and which of them sets it."""
    limits = {f"{MARGIN:g} x the largest clean value {largest:.3g}": MARGIN * largest}
    if row.judge == "noise":
        if name in ("l2", "median", "worst_row", "worst_column", "largest"):
            limits[f"{MARGIN:g} x one noise floor"] = MARGIN
        maxima = [least[name, mode] for mode in modes if (name, mode) in least]
        if len(maxima) == len(modes):
            calibrated = max(maxima)
            limits[f"{CALIBRATED_MARGIN:g} x the calibrated maximum {calibrated:.3g}"] = CALIBRATED_MARGIN * calibrated
        else:
            limits["no calibration says how low clean devices go"] = math.inf
    else:
        why = "what a harmless change moves" if name in PLAIN else "no measurement says how low clean devices go"
        limits[why] = PLAIN.get(name, math.inf)
    why, bound = max(limits.items(), key=lambda limit: limit[1])
    return _up(bound), why


def _up(value: float) -> float:
    """Rounded up to three digits."""
    if value <= 0 or math.isinf(value):
        return value
    digits = 2 - math.floor(math.log10(value))
    return float(f"{math.ceil(round(value * 10**digits, 6)) / 10**digits:.3g}")


def _least(calibration: Path | None) -> dict[tuple[str, str], float]:
    """(statistic, mode) to the clean maximum of a calibration."""
    if calibration is None:
        return {(name, mode): value for name, modes in CALIBRATED.items() for mode, value in modes.items()}
    maxima: dict[tuple[str, str], float] = {}
    try:
        for family in json.loads(calibration.read_text())["families"]:
            for name, margin in family["margins"].items():
                key = name, family["mode"]
                maxima[key] = max(maxima.get(key, 0.0), float(margin["largest"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"--calibration {calibration} is no result of `parity calibrate --json` ({error})") from None
    return maxima


def looser(policy: Policy, before: Policy, frame: pd.DataFrame) -> Iterator[tuple[str, str, str, float, float]]:
    """(stage, mode, statistic, bound before, bound now) of everything that `policy` allows and `before` did not.

    Asked of every stage that history knows, so that rows may be split, joined or moved. A missing bound is infinite.
    """
    names = frame[["stage", "mode"]].drop_duplicates()
    for stage, mode in zip(map(str, names["stage"]), map(str, names["mode"]), strict=True):
        if mode and is_stage(stage):
            now, then = policy.row(stage, mode), before.row(stage, mode)
            for name, bound in then.bounds.items():
                mine = now.bounds[name].ok if name in now.bounds else math.inf
                if mine > bound.ok:
                    yield stage, mode, name, bound.ok, mine


def tightened(text: str, proposed: Sequence[Proposal]) -> str:
    """The policy's TOML with the proposed bounds; comments, order and everything else kept.

    `warn` goes along only where it was the same as `ok`: a bound without a range of warnings keeps having none.
    """
    import tomlkit

    document: Any = tomlkit.parse(text)
    for proposal in proposed:
        if proposal.tighter:
            bound = document["row"][proposal.row][proposal.statistic]
            if bound["warn"] == bound["ok"]:
                bound["warn"] = proposal.new
            bound["ok"] = proposal.new
    return tomlkit.dumps(document)
