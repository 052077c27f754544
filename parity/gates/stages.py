"""Every stage against its golden: from the golden's own input, and with errors travelling downstream."""

from __future__ import annotations

from collections.abc import Iterator

from parity.compare.report import DISPUTED, INCONCLUSIVE, NOT_JUDGED, PASS, Report
from parity.gates.bench import Bench
from parity.gates.evidence import Check
from parity.golden.manifest import Mode


def checks(bench: Bench) -> Iterator[Check]:
    """Both comparisons under the bench's policy."""
    yield judged(bench, "local")
    yield judged(bench, "chained")


def judged(bench: Bench, mode: Mode) -> Check:
    """All stages of the bench's run in this mode."""
    report = bench.compared(mode)
    figures = {"stages": {stage.stage: {"verdict": stage.verdict, **stage.x} for stage in report.stages}}
    return Check(f"{mode}, {len(report.stages)} stages", report.verdict, _line(report), figures, report.first)


def _line(report: Report) -> str:
    """The worst stage, or what failed and where it first shows."""
    numbers = [stage for stage in report.stages if stage.x.get("l2") is not None]
    worst = max(numbers, key=lambda stage: stage.x["l2"], default=None)
    disputed = sum(stage.verdict == DISPUTED for stage in report.stages)
    if report.verdict == DISPUTED:
        return f"the references themselves disagree on {disputed} stages: parity corroborate tells which"
    if report.verdict == INCONCLUSIVE and report.own_experts is not None:
        return str(report.own_experts)
    wrong = [stage for stage in report.stages if stage.verdict not in (PASS, NOT_JUDGED)]
    if wrong or report.findings:
        found = f"; {len(report.findings)} structural findings" if report.findings else ""
        return f"{len(wrong)} stages do not pass{found}; first at {report.first_told or _found(report)}"
    return "nothing to compare" if worst is None else f"worst relative L2 {worst.x['l2']:.3g} {_unit(report)}, {worst.stage}"


def _found(report: Report) -> str:
    """Without a failing stage: the first structural finding, or the first stage that lacks evidence."""
    return report.findings[0].message if report.findings else next(
        stage.stage for stage in report.stages if stage.verdict not in (PASS, NOT_JUDGED)
    )


def _unit(report: Report) -> str:
    return "x noise" if report.precision == "bfloat16" else "of the golden's RMS"
