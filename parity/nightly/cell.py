"""One cell of a night in this process: its device by name, judged and, where it fails, diagnosed."""

from __future__ import annotations

from pathlib import Path

from parity.builders import gate_context
from parity.diagnose import Diagnosis
from parity.diagnose.gates import GateCause
from parity.diagnose.whole import DiagnosisRequest, diagnosed
from parity.golden.views import TrustedGolden
from parity.isolation import ProcessLimits
from parity.nightly.bench import bench_cell
from parity.nightly.judge import judge
from parity.nightly.records import Cell, CellResult, DiagnosisSummary
from parity.producers import baseline


def judge_cell(night: str, cell: Cell, golden: TrustedGolden, folder: Path) -> CellResult:
    """One cell judged on an opened golden, its device in a process of its own; `folder` takes the runs.

    A bench's device is in this process: what it says to another one would be timed with it.
    """
    if cell.kind == "bench":
        return bench_cell(night, cell, golden)
    context = gate_context(
        golden,
        cell.device,
        cell.precision,
        folder,
        ProcessLimits(),
        histories=cell.histories,
        bounds=cell.bounds or None,
    )
    clocked = baseline(golden, cell.precision) if cell.speed_tokens else None
    return judge(night, cell, context, clocked, (lambda: named(cell, golden, folder)) if cell.diagnose else None)


def named(cell: Cell, golden: TrustedGolden, folder: Path) -> DiagnosisSummary | None:
    """What a diagnosis of the cell's device says, in words; None where nothing is wrong."""
    (folder / "diagnosis").mkdir()
    asked = DiagnosisRequest(
        golden, None, cell.device, cell.precision, cell.bounds or None, 1, folder / "diagnosis", ProcessLimits()
    )
    if not (told := diagnosed(asked)):
        return None
    return _by_gates(told) if isinstance(told, list) else _by_hypotheses(told)


def _by_gates(readings: list[GateCause]) -> DiagnosisSummary:
    causes = [
        (reading.id or "", f"{reading.says or 'no known defect'}: {reading.check.evidence}", reading.fix)
        for reading in readings
    ]
    words = [f"{reading.says} ({reading.id})" for reading in readings if reading.id]
    titles = tuple(reading.says if reading.id else "" for reading in readings)
    return DiagnosisSummary(
        causes=tuple(causes), titles=titles, words="; ".join(dict.fromkeys(words)) or "no reading fits"
    )


def _by_hypotheses(told: Diagnosis) -> DiagnosisSummary:
    causes = [
        (cause.hypothesis, f"{cause.says} explains {cause.explained:.2%} of {cause.stage}'s error", cause.fix)
        for cause in told.causes
    ]
    words = "; ".join(f"{cause.says} ({cause.hypothesis})" for cause in told.causes) or (
        told.beside_causes if told.verdict == "fail" else told.verdict
    )
    rest = str(told.unexplained.stage) if told.unexplained else ""
    titles = tuple(cause.says for cause in told.causes)
    return DiagnosisSummary(causes=tuple(causes), titles=titles, unexplained=rest, words=words)
