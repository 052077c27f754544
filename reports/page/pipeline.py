"""The pipeline as its stages: every stage of a cell in one of a dozen nodes, in dataflow order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
StageRecord = Mapping[str, Any]
"""One `StageResult` as a cell's record keeps it."""
ByNode = dict[tuple[str, str], dict[str, list[StageRecord]]]
"""Stages by group and node, then by mode."""
ORIGIN, INHERITED = "origin", "inherited"
CHOICE_LEVEL = {PASS: "h0", WARN: "h3", FAIL: "h5"}


@dataclass(frozen=True)
class LayerSquare:
    """One layer in one mode: the colour of its largest error, and whether it does not pass."""

    x: int
    layer: int
    level: str
    wrong: bool


@dataclass(frozen=True)
class NodeReading:
    """A node in one mode: colour, figure with unit, verdict, and what is behind them.

    Args:
        mark: `origin` where the comparison parts first, `inherited` where all that does not pass comes from before it.
    """

    mode: str
    verdict: str
    level: str
    figure: str
    unit: str
    detail: str
    squares: tuple[LayerSquare, ...] = ()
    mark: str = ""


@dataclass(frozen=True)
class PipelineNode:
    """One box of the drawing."""

    name: str
    verdict: str
    readings: tuple[NodeReading, ...]

    @property
    def origins(self) -> tuple[str, ...]:
        """The modes in which the comparison parts here first."""
        return tuple(reading.mode for reading in self.readings if reading.mark == ORIGIN)


@dataclass(frozen=True)
class PipelineGroup:
    """Boxes that belong to one model, in dataflow order."""

    name: str
    nodes: tuple[PipelineNode, ...]


def node_of(stage: str) -> tuple[str, str]:
    """PipelineGroup and node of a full stage name."""
    matching = (
        (group, name)
        for group, nodes in GROUPS.items()
        for name, globs in nodes.items()
        if any(fnmatchcase(stage, glob) for glob in globs)
    )
    return next(matching)


def pipeline(
    stages: Mapping[str, Sequence[StageRecord]], firsts: Mapping[str, str] | None = None
) -> tuple[PipelineGroup, ...]:
    """The drawing of a cell: `stages` by mode, as a result keeps them. A mode without stages has no reading.

    Args:
        firsts: by mode, the stage of the first divergent place; '' where nothing diverges.
    """
    by_node: ByNode = {}
    for mode, results in stages.items():
        for stage in results:
            by_node.setdefault(node_of(stage["stage"]), {}).setdefault(mode, []).append(stage)
    groups = {group: tuple(_nodes(group, names, by_node, firsts or {})) for group, names in GROUPS.items()}
    return tuple(PipelineGroup(group, nodes) for group, nodes in groups.items() if nodes)


def _nodes(
    group: str, names: Mapping[str, tuple[str, ...]], by_node: ByNode, firsts: Mapping[str, str]
) -> Iterator[PipelineNode]:
    for name in names:
        if modes := by_node.get((group, name)):
            readings = tuple(
                replace(_reading(mode, members), mark=_mark(members, firsts.get(mode, "")))
                for mode, members in modes.items()
            )
            yield PipelineNode(name, join(reading.verdict for reading in readings), readings)


def _mark(members: Sequence[StageRecord], first: str) -> str:
    wrong = [stage for stage in members if stage["verdict"] not in (PASS, NOT_JUDGED)]
    if any(stage["stage"] == first for stage in members):
        return ORIGIN
    return INHERITED if wrong and all(INHERITED in stage["marks"] for stage in wrong) else ""


def error(stage: StageRecord) -> float | None:
    """A stage's relative L2 in its unit; None for choices."""
    value = stage["x"].get("l2")
    return None if value is None else float(value)


def _reading(mode: str, members: Sequence[StageRecord]) -> NodeReading:
    verdict = join(stage["verdict"] for stage in members)
    numbers = [stage for stage in members if error(stage) is not None]
    if not numbers:
        wrong, unit, near = _choices(members)
        return NodeReading(
            mode,
            verdict,
            CHOICE_LEVEL.get(verdict, "hn"),
            wrong,
            unit,
            "; ".join(filter(None, (near, _why(members, verdict)))),
        )
    # The gravest verdict first, then the largest error: one stage may fail by its scale alone.
    worst = max(numbers, key=lambda stage: (stage["verdict"] == verdict, _error(stage)))
    details = [
        _part(worst) if len(numbers) > 1 else "",
        _why(members, verdict),
        " ".join(_choices(members)[:2]) if any(stage["choices"] for stage in members) else "",
    ]
    return NodeReading(
        mode,
        verdict,
        _level(worst),
        figure(_error(worst)),
        UNITS.get(worst["judge"], ""),
        "; ".join(filter(None, details)),
        _squares(numbers),
    )


def _error(stage: StageRecord) -> float:
    """Of a stage that has one."""
    return float(stage["x"]["l2"])


def _level(stage: StageRecord) -> str:
    """The colour of a stage's error."""
    unit = UNITS.get(stage["judge"])
    return level(_error(stage), unit) if unit else "hn"


def _squares(numbers: Sequence[StageRecord]) -> tuple[LayerSquare, ...]:
    layers: dict[int, list[StageRecord]] = {}
    for stage in numbers:
        if stage["layer"] is not None and not stage["stage"].startswith("kv."):
            layers.setdefault(stage["layer"], []).append(stage)
    return tuple(
        LayerSquare(
            x,
            layer,
            _level(max(members, key=_error)),
            join(stage["verdict"] for stage in members) not in (PASS, NOT_JUDGED),
        )
        for x, (layer, members) in enumerate(sorted(layers.items()))
    )


def _part(stage: StageRecord) -> str:
    part = stage["stage"].rsplit(".", 1)[-1]
    side = stage["stage"].split(".")[1] + " " if stage["stage"].startswith("kv.") else ""
    return f"{side}{part}" if stage["layer"] is None else f"{side}layer {stage['layer']}, {part}"


def _choices(members: Sequence[StageRecord]) -> tuple[str, str, str]:
    """Rows that differ beyond tie and noise; of how many; and those that differ within."""
    chosen = [stage for stage in members if stage["choices"]]
    if not chosen:
        return "–", "", ""
    wrong, rows = sum(stage["choices"].get("bug", 0) for stage in chosen), sum(stage["rows"] for stage in chosen)
    near = sum(stage["choices"].get("tie", 0) + stage["choices"].get("noise", 0) for stage in chosen)
    what = "values" if all(stage["judge"] == "exact" for stage in chosen) else "choices"
    return f"{wrong:,}", f"of {rows:,} {what} wrong", f"{near:,} tied or within noise" if near else ""


def _why(members: Sequence[StageRecord], verdict: str) -> str:
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
