"""What `parity bench` prints: cells, the model beside what was measured, gates, and the last word."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table
from rich.text import Text

from parity.bench.baseline import choices
from parity.bench.compare import BenchComparison
from parity.bench.records import BenchCell, BenchReport, Predicted
from parity.bench.roofline import Peaks, Planned
from parity.bench.side_by_side import farthest
from parity.bench.statistics import ONE_RUN, Ratio, Spread
from parity.reports.console import STYLE, console

VERBS = ("prefill", "draft", "verify", "commit")


def print_bench(report: BenchReport) -> None:
    """Everything that was measured, block by block."""
    out = console()
    single = f"; {ONE_RUN}" if report.repeats == 1 else ""
    out.print(
        f"{report.case.precision}, {report.case.max_new_tokens} tokens, {report.repeats} repeats behind "
        f"{report.warm_ups} warm-ups, interleaved, {report.clock} time{single}; {report.machine.processor}, "
        f"{report.machine.cores} cores",
        soft_wrap=True,
    )
    for note in report.case.notes:
        out.print(f"checkpoint: {note}", soft_wrap=True)
    for block in dict.fromkeys(cell.axes.block for cell in report.cells):
        out.print(Text(block, style="bold"))
        cells = [cell for cell in report.cells if cell.axes.block == block]
        out.print(_cells(cells))
        for said in choices(cells):
            out.print(said, soft_wrap=True)
    if report.predictions:
        out.print(Text("the model: measured = predicted x tokens x costs x rest", style="bold"))
        out.print(_predictions(report.predictions))
    _print_end(report)


def _print_end(report: BenchReport) -> None:
    out = console()
    for said in beside(report):
        out.print(said, soft_wrap=True)
    for said in report.findings:
        out.print(said, soft_wrap=True)
    for gate in report.gates:
        if gate.verdict == "pass":
            out.print(f"{gate.cell}: {gate.ratio} over plain decoding, at least {gate.at_least:g}x", soft_wrap=True)
    last = f"bench verdict: {report.verdict}" + (f"; {report.findings[0]}" if report.findings else "")
    out.print(Text(last, style=STYLE[report.verdict]), soft_wrap=True)


def beside(report: BenchReport) -> Iterator[str]:
    """How far the model is off, the loops of an engine compared, and the best K of one half judged by the other."""
    if found := farthest(report.predictions):
        row, off = found
        count = f"of {len(report.predictions)} predictions" if len(report.predictions) > 1 else "of the prediction"
        yield f"measured lies within {abs(off):.0%} {count}, farthest {row.cell} ({off:+.0%})"
    for one in report.loops:
        yield f"{one.cell}: {one.ratio} over {one.over}"
    for gate in report.gates:
        if gate.held_out:
            yield f"{gate.chosen}, the best K of the odd repeats: {gate.held_out} over plain decoding in the even ones"


def _cells(cells: Sequence[BenchCell]) -> Table:
    table = _table("device", "decoding", "K", "tokens/s", "ms/token", "first token ms", "over plain")
    for heading in ("tokens/round", "rate", "ms: prefill draft verify commit", "peak MB"):
        table.add_column(heading, justify="right", overflow="fold")
    for cell in cells:
        axes = cell.axes
        head = axes.device, axes.decoding, str(axes.k or "")
        if cell.overall is None:
            table.add_row(*head, cell.error)
            continue
        one, held = cell.overall, cell.memory
        rounds = one.speculation
        table.add_row(
            *head,
            spread(one.tokens_per_second, 1),
            f"{one.token_ms.median:.2f}",
            spread(one.first_token_ms, 0),
            ratio(one.over_plain),
            f"{rounds.mean_acceptance_length:.2f}" if rounds else "",
            f"{rounds.mean_acceptance_rate:.2f}" if rounds else "",
            " ".join(f"{one.stage_ms[verb].median:.1f}" if verb in one.stage_ms else "-" for verb in VERBS),
            f"{held[0] / 2**20:.0f}" if held else "",
        )
    return table


def _predictions(rows: Iterable[Predicted]) -> Table:
    table = _table("cell", "model", "predicted", "measured", "tokens", "costs", "rest", "a constant", "roofline")
    for row in rows:
        allowed = "" if row.roofline is None else f"{row.roofline:.2f}x"
        factors = (f"{one:.2f}" for one in (row.tokens, row.costs, row.rest))
        measured = f"{row.predicted:.2f}x", ratio(row.measured)
        table.add_row(row.cell, row.model, *measured, *factors, f"{row.constant:.2f}x", allowed)
    return table


def print_comparison(found: BenchComparison) -> None:
    """A line for each figure, then the last word."""
    out = console()
    table = _table("cell", "figure", "second over first", "")
    for one in found.figures:
        table.add_row(one.cell, one.figure, ratio(one.ratio), one.said + (f"; {one.why}" if one.why else ""))
    out.print(table)
    for said in (*found.differences, *found.verdicts, *found.wrong, *found.missing):
        out.print(said, soft_wrap=True)
    slower = [one for one in found.figures if one.said == "slower"]
    last = f"comparison verdict: {found.verdict}"
    if slower:
        last += f"; {len(slower)} of {len(found.figures)} figures slower, first {slower[0].cell}, {slower[0].figure}"
    out.print(Text(last, style=STYLE[found.verdict]), soft_wrap=True)


def print_plan(rows: Sequence[Planned], peaks: Peaks) -> None:
    """A plan: what each phase takes at the least, and the speed-up that leaves."""
    out = console()
    out.print(
        f"peaks: {peaks.flops / 1e12:.3g} TFLOP/s, {peaks.bytes / 1e9:.4g} GB/s ({peaks.source}); phases at the least "
        "that these allow, their multiplications alone",
        soft_wrap=True,
    )
    table = _table("K", "tokens/round", "plain ms", "draft ms", "verify ms", "GFLOP", "MB", "bound by", "speed-up")
    for row in rows:
        work = [row.work[phase] for phase in ("draft", "verify")]
        times = (f"{1000 * row.seconds[phase]:.4g}" for phase in ("plain", "draft", "verify"))
        total = f"{sum(one.flops for one in work) / 1e9:.4g}", f"{sum(one.bytes for one in work) / 1e6:.5g}"
        table.add_row(str(row.k), f"{row.tokens:.2f}", *times, *total, row.bound["verify"], f"{row.speed_up:.2f}x")
    out.print(table)


def spread(value: Spread, digits: int) -> str:
    """Median and quartiles."""
    if value.low is None or value.high is None:
        return f"{value.median:.{digits}f}"
    return f"{value.median:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def ratio(value: Ratio | None) -> str:
    """A ratio with its limits; '' for none."""
    return "" if value is None else str(value)


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for heading in headings:
        left = heading in ("cell", "device", "decoding", "figure", "bound by", "model", "")
        table.add_column(heading, justify="left" if left else "right", overflow="fold")
    return table
