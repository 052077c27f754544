"""A run by itself, as a night of one comparison: the same record as a matrix's cell, without gates."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from time import monotonic

from parity.compare.basis import Rerun
from parity.compare.report import FAIL, INCONCLUSIVE, WARN
from parity.compare.witnesses import CORROBORATED
from parity.gates.context import Bench
from parity.golden.views import DumpView, TrustedGolden
from parity.metrics.record import plain_numbers
from parity.nightly import metrics
from parity.nightly.judge import acceptance, heat_maps
from parity.nightly.records import Axes, Cell, CellResult, Night, label


def night_of(golden: TrustedGolden, run: DumpView, bounds: str | None, rerun: Rerun | None = None) -> tuple[Night, CellResult]:
    """A run held against its golden, in its own mode.

    Args:
        bounds: policy file or name; the default policy of the run's precision where None.
        rerun: as for `parity.compare.compare`.
    """
    began, case = monotonic(), run.manifest.case
    bench = Bench(golden, run.manifest.producer.name, _no_device, case.precision, Path(), bounds=bounds, rerun=rerun)
    bench.give(run)
    report = bench.compared(case.mode)
    cell = _cell(golden, run, bounds or "")
    red = report.verdict in (FAIL, INCONCLUSIVE, WARN)
    place = report.first_told or next((one.message for one in report.findings), report.own_experts or "")
    result = CellResult(
        night=str(run.folder),
        cell=cell,
        verdict=report.verdict,
        started=run.manifest.created,
        seconds=monotonic() - began,
        golden=str(golden.folder),
        first=str(place) if red else "",
        reproduce=report.reproduce if red else "",
        stages={case.mode: tuple(plain_numbers(asdict(one)) for one in report.stages)},
        findings=tuple(f"{case.mode}: {one.message}" for one in report.findings),
        corroborated=tuple(one.stage for one in report.stages if CORROBORATED in one.marks),
        heat=tuple(heat_maps(bench, case.mode)),
        **acceptance(bench, case.mode),
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
    ranks = 1 + max((row.rank for row in run.manifest.tensors), default=0)
    device = run.manifest.producer.name
    names = {"device": device, "family": Path(model.drafter.path).name, "policy": bounds or case.precision}
    axes = Axes(case=case.mode, k=case.k, tp=ranks, **{axis: label(name) for axis, name in names.items()})
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


def _no_device(**_):
    raise NotImplementedError("a run has no device")
