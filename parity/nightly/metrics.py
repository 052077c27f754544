"""The figures of a cell that history keeps: stages, decisions, acceptance, speed; one row each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from parity.bench.statistics import Ratio
from parity.compare.report import NOT_JUDGED, PASS, Report, StageResult
from parity.gates.acceptance import FORCED, FREE
from parity.gates.gate import Check, GateResult
from parity.nightly.records import Metric, RunMode, Speed
from parity.policy import STATISTICS

CHOICES = ("tie", "noise", "bug")
DECISIONS = {"regret_mean": "logits", "regret_max": "logits", "kl_mean": "nats", "kl_max": "nats"}
SPEEDS = ("over_baseline", "over_plain", "model_over_plain")


def of_report(report: Report) -> Iterator[Metric]:
    """Every statistic of every stage, and the counts of choices that differ."""
    for stage in report.stages:
        yield from _numbers(stage, report)
        for name in CHOICES:
            if name in stage.choices:
                value = stage.choices[name] / max(stage.rows, 1)
                yield Metric(
                    stage=stage.stage,
                    mode=cast(RunMode, report.mode),
                    name=name,
                    value=value,
                    unit="share",
                    better="lower",
                    verdict=stage.verdict,
                )


def _numbers(stage: StageResult, report: Report) -> Iterator[Metric]:
    unit = "x noise" if stage.judge == "noise" else "relative"
    for name, value in stage.x.items():
        bound = stage.bounds.get(name)
        yield Metric(
            stage=stage.stage,
            mode=cast(RunMode, report.mode),
            name=name,
            value=value,
            unit=STATISTICS.get(name)
            or ("standard errors" if unit == "x noise" and name in ("scale", "bias") else unit),
            better="lower",
            verdict=stage.verdict if bound else NOT_JUDGED,
            bound=bound[0] if bound else None,
        )


def of_gates(gates: Sequence[GateResult]) -> Iterator[Metric]:
    """Divergence and regret of every group of logits, and acceptance against the reference with its limits."""
    for gate in gates:
        for check in gate.checks:
            if gate.gate == "decisions":
                yield from _decisions(check)
            elif check.name in (FREE, FORCED) and "relative" in check.figures:
                yield _relative(check)


def _decisions(check: Check) -> Iterator[Metric]:
    group = check.name.split(",")[0]
    for name, unit in DECISIONS.items():
        if name in check.figures:
            yield Metric(
                stage=f"decisions.{group}",
                mode="chained",
                name=name,
                value=check.figures[name],
                unit=unit,
                better="lower",
                verdict=check.verdict,
            )


def _relative(check: Check) -> Metric:
    name = "relative" if check.name == FREE else "relative_forced"
    figures = check.figures
    return Metric(
        stage="acceptance",
        mode="chained",
        name=name,
        value=figures["relative"],
        unit="relative",
        better="higher",
        verdict=check.verdict,
        bound=-figures["bound"],
        low=figures["low"],
        high=figures["high"],
    )


def of_acceptance(report: Report) -> Iterator[Metric]:
    """The device's own acceptance, in both of its counts."""
    if (device := report.acceptance.device) is None:
        return
    for name in ("acceptance_length", "accepted_drafts"):
        yield Metric(
            stage="acceptance",
            mode="chained",
            name=name,
            value=getattr(device, name),
            unit="per round",
            better="higher",
            verdict=NOT_JUDGED,
        )


def of_speed(speed: Speed) -> Iterator[Metric]:
    """The ratios; rates alone are the machine's."""
    for name in SPEEDS:
        yield Metric(
            stage="speed",
            mode="",
            name=name,
            value=getattr(speed, name),
            unit="ratio",
            better="higher",
            verdict=NOT_JUDGED,
        )


def of_bench(ratio: Ratio, at_least: float, verdict: str) -> Iterator[Metric]:
    """Speculation over plain decoding, with its limits."""
    yield Metric(
        stage="bench",
        mode="",
        name="over_plain",
        value=ratio.estimate,
        unit="ratio",
        better="higher",
        verdict=verdict,
        bound=at_least or None,
        low=ratio.low,
        high=ratio.high,
    )


def of_cell(verdict: str, seconds: float) -> Iterator[Metric]:
    """Whether the cell passed, and what it cost."""
    yield Metric(
        stage="cell",
        mode="",
        name="passed",
        value=float(verdict in (PASS, "warn")),
        unit="share",
        better="higher",
        verdict=verdict,
    )
    yield Metric(stage="cell", mode="", name="seconds", value=seconds, unit="s", better="none", verdict=NOT_JUDGED)
