"""One cell judged: gates, both comparisons, maps, acceptance, speed, diagnosis; a run alone as a night of one cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn, cast

from parity.compare.basis import Rerun
from parity.compare.breakdown import heat
from parity.compare.places import CORROBORATED
from parity.compare.report import FAIL, INCONCLUSIVE, WARN, Report, conclude
from parity.errors import NotOffered, UsageError
from parity.files import config_of
from parity.gates import run_gates
from parity.gates.acceptance_counts import AcceptanceCounts
from parity.gates.acceptance_interval import wilson_limits
from parity.gates.context import GateContext
from parity.gates.gate import GateReport, GateResult
from parity.golden.case import Generation
from parity.golden.digests import digest_tensors
from parity.golden.provenance import now
from parity.golden.views import DumpView, TrustedGolden
from parity.metrics.record import plain_numbers
from parity.nightly import metrics
from parity.nightly.records import (
    Cell,
    CellAxes,
    CellResult,
    CellVerdict,
    ComparedMode,
    DiagnosisSummary,
    HeatMap,
    Landmarks,
    Night,
    PositionAcceptance,
    PromptAcceptance,
    RunMode,
    Speed,
    label,
)
from parity.nightly.speed import Clocked, measure_speed
from parity.reproducing import command_line

MODES: tuple[RunMode, ...] = ("local", "chained")
Diagnose = Callable[[], DiagnosisSummary | None]


def judge(
    night: str, cell: Cell, context: GateContext, baseline: Clocked | None, diagnose: Diagnose | None
) -> CellResult:
    """Everything a cell is asked for.

    Args:
        context: of the cell's golden, device and bounds.
        baseline: what speed is measured against; None leaves speed out.
        diagnose: names the defect, asked where a gate or a stage fails.
    """
    started, began = now(), monotonic()
    gates = run_gates(context, cell.gates)
    reports = {mode: context.compared(mode) for mode in MODES}
    verdict = conclude([gates.verdict, *(report.verdict for report in reports.values())])
    speed = _speed(cell, context, baseline)
    diagnosis = diagnose() if diagnose and verdict == FAIL else None
    seconds = monotonic() - began
    first, reproduce = _first(gates, reports)
    prompts, positions = acceptance(context, "chained")
    return CellResult(
        night=night,
        cell=cell,
        verdict=cast(CellVerdict, verdict),
        started=started,
        seconds=seconds,
        golden=str(context.golden.folder),
        golden_digest=digest_tensors(context.golden.manifest.tensors),
        first=first,
        reproduce=reproduce,
        gates=tuple(plain_numbers(_gate(result)) for result in gates.results),
        stages={mode: _stages(report) for mode, report in reports.items()},
        compared={mode: _compared(report) for mode, report in reports.items()},
        findings=tuple(f"{mode}: {finding.message}" for mode, report in reports.items() for finding in report.findings),
        corroborated=_corroborated(reports["chained"]),
        heat=tuple(heat_map for mode in MODES for heat_map in heat_maps(context, mode)),
        landmarks=landmarks(context.golden),
        prompts=prompts,
        positions=positions,
        speed=speed,
        diagnosis=diagnosis,
        metrics=(
            *metrics.of_cell(verdict, seconds),
            *(metric for report in reports.values() for metric in metrics.of_report(report)),
            *metrics.of_gates(gates.results),
            *metrics.of_acceptance(reports["chained"]),
            *(metrics.of_speed(speed) if speed else ()),
        ),
        versions=context.device().describe().versions,
    )


def broken(night: str, cell: Cell, why: str, started: str, seconds: float) -> CellResult:
    """A cell that could not be judged: evidence is missing, and its verdict is inconclusive."""
    return CellResult(
        night=night,
        cell=cell,
        verdict=cast(CellVerdict, INCONCLUSIVE),
        started=started,
        seconds=seconds,
        error=why,
        metrics=tuple(metrics.of_cell(INCONCLUSIVE, seconds)),
    )


def _gate(result: GateResult) -> dict[str, Any]:
    return asdict(result) | {"verdict": result.verdict}


def _stages(report: Report) -> tuple[dict[str, Any], ...]:
    return tuple(plain_numbers(asdict(stage)) for stage in report.stages)


def _compared(report: Report) -> ComparedMode:
    return ComparedMode(families=report.families, first=report.first.stage if report.first else "")


def landmarks(golden: DumpView) -> Landmarks:
    """What every map of this golden's rows marks; a checkpoint that is not here any more has no window."""
    try:
        window = config_of(Path(golden.manifest.model.target.path)).get("sliding_window")
    except UsageError:
        window = None
    ends = sorted({len(prompt.ids) for prompt in golden.manifest.case.prompts})
    return Landmarks(window=window if type(window) is int and window > 0 else None, prompt_ends=tuple(ends))


def _corroborated(report: Report) -> tuple[str, ...]:
    return tuple(stage.stage for stage in report.stages if CORROBORATED in stage.marks)


def _first(gates: GateReport, reports: dict[RunMode, Report]) -> tuple[str, str]:
    """Where the gravest failure first shows, and the command that repeats it: stages before gates."""
    for report in reports.values():
        if report.verdict == FAIL:
            return report.first_summary or report.findings[0].message, _again(gates, report)
    for result in gates.results:
        if result.verdict == gates.verdict and result.verdict in (FAIL, INCONCLUSIVE):
            check = result.first
            return f"gate {result.gate}: {check.name if check else 'no check'}", result.reproduce
    return "", ""


def _again(gates: GateReport, report: Report) -> str:
    return command_line(
        "diff",
        device=gates.device,
        mode=report.mode,
        precision=report.precision,
        golden=report.golden,
        policy=report.policy_asked,
    )


def heat_maps(context: GateContext, mode: RunMode) -> Iterator[HeatMap]:
    """Every approximate stage of the run of this mode, by layer and position."""
    unit = "x noise" if context.precision == "bfloat16" else "relative L2"
    for family, layers, positions in heat(context.basis(mode).golden, context.run(mode)):
        x = tuple(
            tuple(None if math.isnan(error) else float(f"{error:.3g}") for error in row) for row in layers.values()
        )
        yield HeatMap(
            family=family, mode=mode, unit=unit, layers=tuple(layers), positions=tuple(map(int, positions)), x=x
        )


def acceptance(
    context: GateContext, mode: RunMode
) -> tuple[tuple[PromptAcceptance, ...], tuple[PositionAcceptance, ...]]:
    """Per prompt and per draft; empty where the run generated nothing."""
    prompts, ks = context.golden.manifest.case.prompts, context.golden.manifest.case.ks
    device = [prompt.generation for prompt in context.run(mode).manifest.case.prompts if prompt.generation is not None]
    reference = [prompt.generation for prompt in prompts if prompt.generation is not None]
    if len(device) < len(context.run(mode).manifest.case.prompts) or len(reference) < len(prompts):
        return (), ()
    by_prompt = tuple(
        PromptAcceptance(prompt=prompt.id, lengths=own.acceptance_length, reference=expected.acceptance_length)
        for prompt, own, expected in zip(prompts, device, reference, strict=True)
    )
    return by_prompt, tuple(_positions(device, reference, ks))


def _positions(
    device: Sequence[Generation], reference: Sequence[Generation], ks: Sequence[int]
) -> Iterator[PositionAcceptance]:
    own, expected = AcceptanceCounts.of(device, ks), AcceptanceCounts.of(reference, ks)
    counts = zip(own.reached.tolist(), expected.reached.tolist(), strict=True)
    for draft, (accepted, reference_accepted) in enumerate(counts, 1):
        low, high = wilson_limits(accepted, own.rounds)
        yield PositionAcceptance(
            draft=draft,
            accepted=accepted,
            rounds=own.rounds,
            low=low,
            high=high,
            reference_accepted=reference_accepted,
            reference_rounds=expected.rounds,
        )


def _speed(cell: Cell, context: GateContext, baseline: Clocked | None) -> Speed | None:
    """Of the golden's first prompt; None where it is not asked for or the device decodes with drafts only."""
    if not cell.speed_tokens or baseline is None:
        return None
    try:
        return measure_speed(context.device(), baseline, context.golden.manifest.case.prompts[0].ids, cell.speed_tokens)
    except NotOffered:
        return None


def night_of(golden: TrustedGolden, run: DumpView, bounds: str | None, rerun: Rerun) -> tuple[Night, CellResult]:
    """A run compared with its golden in its own mode: the same record as a matrix's cell, without gates.

    Args:
        bounds: policy file or name; the default policy of the run's precision where None.
        rerun: as for `parity.compare.compare`.
    """
    began, case = monotonic(), run.manifest.case
    context = GateContext(
        golden, run.manifest.producer.name, _no_device, case.precision, Path(), bounds=bounds, rerun=rerun
    )
    context.give(run)
    report = context.compared(case.mode)
    cell = _cell(golden, run, bounds or "")
    red = report.verdict in (FAIL, INCONCLUSIVE, WARN)
    place = report.first_summary or next((finding.message for finding in report.findings), report.own_experts or "")
    mode = cast(RunMode, case.mode)
    prompts, positions = acceptance(context, mode)
    result = CellResult(
        night=str(run.folder),
        cell=cell,
        verdict=cast(CellVerdict, report.verdict),
        started=run.manifest.created,
        seconds=monotonic() - began,
        golden=str(golden.folder),
        first=str(place) if red else "",
        reproduce=report.reproduce if red else "",
        stages={mode: _stages(report)},
        compared={mode: _compared(report)},
        findings=tuple(f"{mode}: {finding.message}" for finding in report.findings),
        corroborated=_corroborated(report),
        heat=tuple(heat_maps(context, mode)),
        landmarks=landmarks(golden),
        prompts=prompts,
        positions=positions,
        metrics=tuple(metrics.of_report(report)),
        versions=run.manifest.producer.versions,
    )
    night = Night(
        name=run.folder.name,
        started=run.manifest.created,
        commit="",
        dirty=False,
        matrix="one run",
        matrix_digest="",
        engine="none",
        machine=run.manifest.producer.platform,
        cells=(cell,),
    )
    return night, result


def _cell(golden: TrustedGolden, run: DumpView, bounds: str) -> Cell:
    case, model = run.manifest.case, golden.manifest.model
    device = run.manifest.producer.name
    axes = CellAxes(
        case=case.mode,
        device=label(device),
        family=label(Path(model.drafter.path).name),
        k=case.k,
        tp=1 + max((row.rank for row in run.manifest.tensors), default=0),
        policy=label(bounds or case.precision),
    )
    return Cell(
        axes=axes,
        target=model.target.path,
        drafter=model.drafter.path,
        prompts="",
        max_new_tokens=case.max_new_tokens,
        golden=str(golden.folder),
        device=device,
        precision=case.precision,
        bounds=bounds,
        gates=(),
        diagnose=False,
    )


def _no_device(**_: Any) -> NoReturn:
    raise NotImplementedError("a run has no device")
