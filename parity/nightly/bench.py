"""A cell that is timed: speculation over plain decoding on its golden's prompts, judged by the interval's lower end."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from parity.bench.measure import run_bench
from parity.bench.records import BenchReport
from parity.bench.request import BenchRequest
from parity.bench.workload import Workload
from parity.golden.digests import digest_tensors
from parity.golden.provenance import now
from parity.golden.views import TrustedGolden
from parity.nightly import metrics
from parity.nightly.records import Cell, CellResult, CellVerdict
from parity.reproducing import command_line

REPEATS, PROMPTS = 5, 5
"""What an interval is made of: fewer are hardly one, and a night has other cells."""


def bench_cell(night: str, cell: Cell, golden: TrustedGolden) -> CellResult:
    """A cell's device timed with and without drafts, interleaved."""
    started = now()
    prompts = {prompt.id: list(prompt.ids) for prompt in golden.manifest.case.prompts[:PROMPTS]}
    request = BenchRequest(
        (Workload(cell.axes.case, prompts),),
        Path(cell.target),
        Path(cell.drafter),
        devices=(cell.device,),
        precision=cell.precision,
        ks=(cell.axes.k,),
        max_new_tokens=cell.max_new_tokens,
        repeats=REPEATS,
        at_least=cell.at_least,
    )
    began = request.now()
    report = run_bench(request)
    return _result(night, cell, golden, report, started, request.now() - began)


def _result(
    night: str, cell: Cell, golden: TrustedGolden, report: BenchReport, started: str, seconds: float
) -> CellResult:
    (timed,) = (one for one in report.cells if one.axes.decoding == "speculative")
    ratio = timed.overall.over_plain if timed.overall else None
    again = command_line(
        "bench",
        device=cell.device,
        k=cell.axes.k,
        precision=cell.precision,
        target=cell.target,
        drafter=cell.drafter,
        max_new_tokens=cell.max_new_tokens,
        prompts=cell.prompts,
    )
    return CellResult(
        night=night,
        cell=cell,
        verdict=cast(CellVerdict, report.verdict),
        started=started,
        seconds=seconds,
        golden=str(golden.folder),
        golden_digest=digest_tensors(golden.manifest.tensors),
        first=report.findings[0] if report.findings else "",
        reproduce=again if report.exit_code else "",
        findings=report.findings,
        metrics=(
            *metrics.of_cell(report.verdict, seconds),
            *(metrics.of_bench(ratio, cell.at_least, report.verdict) if ratio else ()),
        ),
        versions=report.machine.versions,
    )
