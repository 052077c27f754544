"""What a page shows of one cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from parity.compare.report import DISPUTED, FAIL, INCONCLUSIVE, PASS, WARN
from parity.nightly.records import Cell, CellResult, CellVerdict, DiagnosisSummary, Speed
from parity.reports.console import families_counted
from parity.reports.page import heatmap
from parity.reports.page.figures import count, figure, legend
from parity.reports.page.past import ChangeView, Past
from parity.reports.page.pipeline import PipelineGroup, error, pipeline
from parity.reports.page.plots import Bars, Forest, acceptance_lengths, by_draft, by_prompt, speed_bars
from parity.reports.page.trends import TrendLine

RED = (FAIL, DISPUTED, INCONCLUSIVE)
"""Verdicts that want somebody to look: wrong, or without evidence."""
SHORT = {"noise": "×", "relative": "rel"}
"""Units where there is little room."""
WORDS = (FAIL, DISPUTED, "broken", "not run", INCONCLUSIVE, WARN, PASS)
"""Verdicts as they are told, gravest first."""
MISSING = "no result: the cell has not run to its end"


@dataclass(frozen=True)
class GateCheck:
    """One check of one gate."""

    gate: str
    name: str
    verdict: str
    evidence: str


@dataclass(frozen=True)
class DecisionFigures:
    """One group of logits: how its choices differ, and what that costs."""

    group: str
    verdict: str
    figures: dict[str, Any]


@dataclass(frozen=True)
class CellView:
    """A cell, ready for the template."""

    id: str
    cell: Cell
    verdict: str
    seconds: float | None
    error: str
    first: str
    reproduce: str
    diagnosis: DiagnosisSummary | None
    findings: tuple[str, ...]
    groups: tuple[PipelineGroup, ...]
    worst: dict[str, str]
    counted: dict[str, str]
    maps: dict[str, list[heatmap.MapPicture]]
    landmarks: tuple[tuple[str, str], ...]
    legends: dict[str, list[tuple[str, str]]]
    drafts: Forest | None
    prompts: Forest | None
    lengths: tuple[float, float] | None
    choices: tuple[DecisionFigures, ...]
    checks: tuple[GateCheck, ...]
    speed: Speed | None
    bars: Bars | None
    changes: tuple[ChangeView, ...]
    series: tuple[TrendLine, ...]
    corroborated: int
    golden: str
    log: str
    versions: dict[str, str]

    @property
    def name(self) -> str:
        """As in the matrix."""
        return self.cell.name

    @property
    def word(self) -> str:
        """The verdict as it is told: a cell that broke, or has not run, is called so."""
        return "not run" if self.seconds is None else "broken" if self.error else self.verdict

    @property
    def red(self) -> bool:
        """Whether somebody has to look."""
        return self.verdict in RED

    @property
    def diagnosed(self) -> str:
        """The diagnosis in a few words; why there is none where there is none."""
        if self.diagnosis is not None:
            return self.diagnosis.words
        return "" if self.verdict != FAIL else "none was made" if not self.cell.diagnose else "no diagnosis"


def view(number: int, cell: Cell, result: CellResult | None, past: Past, log: str) -> CellView:
    """A planned cell and its result; inconclusive without one. `log` is the end of what a broken cell printed."""
    missing = CellResult(
        night="", cell=cell, verdict=cast(CellVerdict, INCONCLUSIVE), started="", seconds=0, error=MISSING
    )
    shown = result or missing
    maps = {mode: pictures for mode in shown.stages if (pictures := heatmap.pictures(shown, mode))}
    return CellView(
        id=f"cell-{number}",
        cell=cell,
        verdict=shown.verdict,
        seconds=None if result is None else shown.seconds,
        error=shown.error,
        first=shown.first,
        reproduce=shown.reproduce,
        diagnosis=shown.diagnosis,
        findings=shown.findings,
        groups=pipeline(shown.stages, {mode: found.first for mode, found in shown.compared.items()}),
        worst={mode: _worst(stages) for mode, stages in shown.stages.items()},
        counted={
            mode: families_counted(found.families, len(shown.stages.get(mode, ())))
            for mode, found in shown.compared.items()
        },
        maps=maps,
        landmarks=tuple(heatmap.told(shown.landmarks)),
        legends={unit: legend(unit) for unit in heatmap.units(maps)},
        drafts=by_draft(shown),
        prompts=by_prompt(shown),
        lengths=acceptance_lengths(shown),
        choices=tuple(_choices(shown)),
        checks=tuple(_checks(shown)),
        speed=shown.speed,
        bars=speed_bars(shown.speed),
        changes=past.of(cell.name),
        series=past.series.get(cell.name, ()),
        corroborated=len(shown.corroborated),
        golden=shown.golden,
        log=log if shown.error else "",
        versions=shown.versions,
    )


def _worst(stages: Iterable[dict[str, Any]]) -> str:
    """The largest error of a mode."""
    errors = [(value, stage["judge"]) for stage in stages if (value := error(stage)) is not None]
    if not errors:
        return "–"
    value, judge = max(errors)
    return f"{figure(value)} {SHORT.get(judge, '')}".rstrip()


def _checks(result: CellResult) -> Iterator[GateCheck]:
    for gate in result.gates:
        for check in gate["checks"]:
            yield GateCheck(gate["gate"], check["name"], check["verdict"], check["evidence"])
        if not gate["checks"]:
            yield GateCheck(gate["gate"], "no check", gate["verdict"], "")


def _choices(result: CellResult) -> Iterator[DecisionFigures]:
    for gate in result.gates:
        for check in gate["checks"]:
            if gate["gate"] == "decisions" and "kl_mean" in check["figures"]:
                yield DecisionFigures(check["name"].split(",")[0], check["verdict"], check["figures"])


def counts(cells: tuple[CellView, ...]) -> dict[str, int]:
    """How many cells are told as what, gravest first."""
    counted = {word: sum(cell.word == word for cell in cells) for word in WORDS}
    return {word: number for word, number in counted.items() if number}


def tally(cells: tuple[CellView, ...]) -> str:
    """`1 fail, 2 inconclusive, 9 pass`."""
    shown = [f"{number} {word}" for word, number in counts(cells).items()]
    return f"{count(len(cells), 'cell')}: {', '.join(shown) or 'none'}"
