"""One cell judged: gates, both comparisons, maps, acceptance, speed, diagnosis; and its figures for history."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from time import monotonic
from typing import Any

from parity.compare.breakdown import heat
from parity.compare.report import FAIL, INCONCLUSIVE, Report, conclude
from parity.compare.witnesses import CORROBORATED
from parity.errors import NotOffered
from parity.gates import run_gates
from parity.gates.acceptance.counts import Tally
from parity.gates.acceptance.interval import wilson
from parity.gates.context import Bench
from parity.gates.evidence import Gates
from parity.golden.manifest import Generation, Mode
from parity.golden.provenance import now
from parity.metrics.record import plain_numbers
from parity.nightly import metrics
from parity.nightly.records import Cell, CellResult, HeatMap, Named, PositionAcceptance, PromptAcceptance, Speed
from parity.nightly.speed import Clocked, measure_speed

MODES: tuple[Mode, ...] = ("local", "chained")
Diagnose = Callable[[], Named | None]


def judge(night: str, cell: Cell, bench: Bench, baseline: Clocked | None, diagnose: Diagnose | None) -> CellResult:
    """Everything a cell is asked for.

    Args:
        bench: of the cell's golden, device and bounds.
        baseline: what speed is measured against; None leaves speed out.
        diagnose: names the defect, asked where a gate or a stage fails.
    """
    started, began = now(), monotonic()
    gates = run_gates(bench, cell.gates)
    reports = {mode: bench.compared(mode) for mode in MODES}
    verdict = conclude([gates.verdict, *(report.verdict for report in reports.values())])
    speed = _speed(cell, bench, baseline)
    named = diagnose() if diagnose and verdict == FAIL else None
    seconds = monotonic() - began
    return CellResult(
        night=night,
        cell=cell,
        verdict=verdict,
        started=started,
        seconds=seconds,
        golden=str(bench.golden.folder),
        **_first(gates, reports),
        gates=tuple(plain_numbers(_gate(one)) for one in gates.results),
        stages={mode: tuple(plain_numbers(asdict(one)) for one in report.stages) for mode, report in reports.items()},
        findings=tuple(f"{mode}: {one.message}" for mode, report in reports.items() for one in report.findings),
        corroborated=tuple(one.stage for one in reports["chained"].stages if CORROBORATED in one.marks),
        heat=tuple(one for mode in MODES for one in heat_maps(bench, mode)),
        **acceptance(bench),
        speed=speed,
        diagnosis=named,
        metrics=tuple(
            [
                *metrics.of_cell(verdict, seconds),
                *(one for report in reports.values() for one in metrics.of_report(report)),
                *metrics.of_gates(gates.results),
                *metrics.of_acceptance(reports["chained"]),
                *(metrics.of_speed(speed) if speed else ()),
            ]
        ),
        versions=bench.device().describe().versions,
    )


def broken(night: str, cell: Cell, why: str, started: str, seconds: float) -> CellResult:
    """A cell that could not be judged: no evidence, which is no pass."""
    return CellResult(
        night=night,
        cell=cell,
        verdict=INCONCLUSIVE,
        started=started,
        seconds=seconds,
        error=why,
        metrics=tuple(metrics.of_cell(INCONCLUSIVE, seconds)),
    )


def _gate(result) -> dict[str, Any]:
    return asdict(result) | {"verdict": result.verdict}


def _first(gates: Gates, reports: dict[Mode, Report]) -> dict[str, str]:
    """Where the gravest failure first shows, and the command that repeats it: stages before gates."""
    for report in reports.values():
        if report.verdict == FAIL:
            return {"first": report.first_told or report.findings[0].message, "reproduce": _again(gates, report)}
    for result in gates.results:
        if result.verdict == gates.verdict and result.verdict in (FAIL, INCONCLUSIVE):
            check = result.first
            return {
                "first": f"gate {result.gate}: {check.name if check else 'no check'}",
                "reproduce": result.reproduce,
            }
    return {}


def _again(gates: Gates, report: Report) -> str:
    policy = f" --policy {report.policy}" if report.policy != report.precision else ""
    return f"parity diff --device {gates.device} --mode {report.mode} --precision {report.precision} --golden {report.golden}{policy}"


def heat_maps(bench: Bench, mode: Mode) -> Iterator[HeatMap]:
    """Every approximate stage of the run of this mode, by layer and position."""
    unit = "x noise" if bench.precision == "bfloat16" else "relative L2"
    for family, layers, positions in heat(bench.basis(mode).golden, bench.run(mode)):
        x = tuple(tuple(None if math.isnan(one) else float(f"{one:.3g}") for one in row) for row in layers.values())
        yield HeatMap(
            family=family, mode=mode, unit=unit, layers=tuple(layers), positions=tuple(map(int, positions)), x=x
        )


def acceptance(bench: Bench, mode: Mode = "chained") -> dict[str, tuple]:
    """Per prompt and per draft; empty where the run generated nothing by itself."""
    prompts, k = bench.golden.manifest.case.prompts, bench.golden.manifest.case.k
    device = [one.generation for one in bench.run(mode).manifest.case.prompts]
    reference = [one.generation for one in prompts]
    if any(one is None for one in (*device, *reference)):
        return {}
    return {
        "prompts": tuple(
            PromptAcceptance(prompt=prompt.id, lengths=mine.acceptance_length, reference=true.acceptance_length)
            for prompt, mine, true in zip(prompts, device, reference, strict=True)
        ),
        "positions": tuple(_positions(device, reference, k)),
    }


def _positions(device: list[Generation], reference: list[Generation], k: int) -> Iterator[PositionAcceptance]:
    mine, true = Tally.of(device, k), Tally.of(reference, k)
    for draft, (accepted, expected) in enumerate(zip(mine.reached.tolist(), true.reached.tolist(), strict=True), 1):
        low, high = wilson(accepted, mine.rounds)
        yield PositionAcceptance(
            draft=draft,
            accepted=accepted,
            rounds=mine.rounds,
            low=low,
            high=high,
            reference_accepted=expected,
            reference_rounds=true.rounds,
        )


def _speed(cell: Cell, bench: Bench, baseline: Clocked | None) -> Speed | None:
    """Of the golden's first prompt; None where it is not asked for or the device decodes with drafts only."""
    if not cell.speed_tokens or baseline is None:
        return None
    try:
        return measure_speed(bench.device(), baseline, bench.golden.manifest.case.prompts[0].ids, cell.speed_tokens)
    except NotOffered:
        return None
