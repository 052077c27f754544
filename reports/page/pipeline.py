"""The pipeline as its stages: every stage of a cell in one of a dozen nodes, in dataflow order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from parity.compare.report import FAIL, NOT_JUDGED, PASS, WARN, join
from parity.reports.page.figures import UNITS, figure, level

GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "Target": {
        "Embed": ("target.embed",),
        "Layers": ("target.layers.*",),
        "Head": ("target.pre_head_hidden", "target.logits", "target.tokens"),
    },
    "Drafter": {
        "Taps": ("drafter.taps",),
        "Inputs": ("drafter.input_ids", "drafter.positions", "drafter.slots"),
        "Fuse (fc)": ("drafter.fc_out",),
        "Layers": ("drafter.layers.*",),
        "Logits": ("drafter.pre_head_hidden", "drafter.logits"),
        "Draft tokens": ("drafter.draft_tokens",),
    },
    "Round": {"Verify": ("verify.*",), "Accept": ("accept.*",), "Caches": ("kv.*",)},
    "Other": {"Other stages": ("*",)},
}
"""Globs of full stage names; the first node that matches has the stage, so that none is left out."""
CHOICE_LEVEL = {PASS: "h0", WARN: "h3", FAIL: "h5"}


@dataclass(frozen=True)
class Square:
    """One layer in one mode: the colour of its largest error, and whether it is no pass."""

    x: int
    layer: int
    level: str
    wrong: bool


@dataclass(frozen=True)
class Reading:
    """A node in one mode: colour, figure with unit, verdict, and what is behind them."""

    mode: str
    verdict: str
    level: str
    figure: str
    unit: str
    detail: str
    squares: tuple[Square, ...] = ()


@dataclass(frozen=True)
class Node:
    """One box of the drawing."""

    name: str
    verdict: str
    readings: tuple[Reading, ...]


@dataclass(frozen=True)
class Group:
    """Boxes that belong to one model, in dataflow order."""

    name: str
    nodes: tuple[Node, ...]


def node_of(stage: str) -> tuple[str, str]:
    """Group and node of a full stage name."""
    found = (
        (group, name)
        for group, nodes in GROUPS.items()
        for name, globs in nodes.items()
        if any(fnmatchcase(stage, glob) for glob in globs)
    )
    return next(found)


def pipeline(stages: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[Group, ...]:
    """The drawing of a cell: `stages` by mode, as a result keeps them. A mode without stages has no reading."""
    held: dict[tuple[str, str], dict[str, list]] = {}
    for mode, results in stages.items():
        for stage in results:
            held.setdefault(node_of(stage["stage"]), {}).setdefault(mode, []).append(stage)
    return tuple(Group(group, nodes) for group, names in GROUPS.items() if (nodes := tuple(_nodes(group, names, held))))


def _nodes(group: str, names: Mapping[str, tuple[str, ...]], held: Mapping) -> Iterator[Node]:
    for name in names:
        if modes := held.get((group, name)):
            readings = tuple(_reading(mode, members) for mode, members in modes.items())
            yield Node(name, join(one.verdict for one in readings), readings)


def error(stage: Mapping[str, Any]) -> float | None:
    """A stage's relative L2 in its unit; None for choices."""
    value = stage["x"].get("l2")
    return None if value is None else float(value)


def _reading(mode: str, members: Sequence[Mapping[str, Any]]) -> Reading:
    verdict = join(stage["verdict"] for stage in members)
    numbers = [stage for stage in members if error(stage) is not None]
    if not numbers:
        wrong, unit, near = _choices(members)
        return Reading(
            mode,
            verdict,
            CHOICE_LEVEL.get(verdict, "hn"),
            wrong,
            unit,
            "; ".join(filter(None, (near, _why(members, verdict)))),
        )
    # The gravest verdict first, then the largest error: one stage may fail by its scale alone.
    worst = max(numbers, key=lambda stage: (stage["verdict"] == verdict, error(stage)))
    unit = UNITS[worst["judge"]] if worst["judge"] in UNITS else ""
    shade = level(error(worst), unit) if unit else "hn"
    where = _part(worst) if len(numbers) > 1 else ""
    told = [
        where,
        _why(members, verdict),
        " ".join(_choices(members)[:2]) if any(stage["choices"] for stage in members) else "",
    ]
    return Reading(mode, verdict, shade, figure(error(worst)), unit, "; ".join(filter(None, told)), _squares(numbers))


def _squares(numbers: Sequence[Mapping[str, Any]]) -> tuple[Square, ...]:
    layers: dict[int, list] = {}
    for stage in numbers:
        if stage["layer"] is not None and not stage["stage"].startswith("kv."):
            layers.setdefault(stage["layer"], []).append(stage)
    return tuple(
        Square(x, layer, _shade(members), join(one["verdict"] for one in members) not in (PASS, NOT_JUDGED))
        for x, (layer, members) in enumerate(sorted(layers.items()))
    )


def _shade(members: Sequence[Mapping[str, Any]]) -> str:
    worst = max(members, key=error)
    return level(error(worst), UNITS[worst["judge"]]) if worst["judge"] in UNITS else "hn"


def _part(stage: Mapping[str, Any]) -> str:
    part = stage["stage"].rsplit(".", 1)[-1]
    side = stage["stage"].split(".")[1] + " " if stage["stage"].startswith("kv.") else ""
    return f"{side}{part}" if stage["layer"] is None else f"{side}layer {stage['layer']}, {part}"


def _choices(members: Sequence[Mapping[str, Any]]) -> tuple[str, str, str]:
    """Rows that differ beyond tie and noise; of how many; and those that differ within."""
    chosen = [stage for stage in members if stage["choices"]]
    if not chosen:
        return "–", "", ""
    wrong, rows = sum(stage["choices"].get("bug", 0) for stage in chosen), sum(stage["rows"] for stage in chosen)
    near = sum(stage["choices"].get("tie", 0) + stage["choices"].get("noise", 0) for stage in chosen)
    what = "values" if all(stage["judge"] == "exact" for stage in chosen) else "choices"
    return f"{wrong:,}", f"of {rows:,} {what} wrong", f"{near:,} tied or within noise" if near else ""


def _why(members: Sequence[Mapping[str, Any]], verdict: str) -> str:
    """The statistic furthest beyond its bound, where it is not L2 that shows already; or why nothing was judged."""
    if verdict in (PASS, NOT_JUDGED):
        return ""
    over = [
        (float(stage["x"][name]) / max(bound[0], 1e-30), name, float(stage["x"][name]))
        for stage in members
        if stage["verdict"] == verdict
        for name, bound in stage["bounds"].items()
        if name in stage["x"] and float(stage["x"][name]) > bound[0]
    ]
    if over:
        times, name, value = max(over)
        return "" if name == "l2" else f"{name.replace('_', ' ')} {figure(value)} (bound {figure(value / times)})"
    return next((stage["note"] for stage in members if stage["verdict"] == verdict and stage["note"]), "")
