"""A bench as Markdown: the table by prompt, and the model beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parity.bench.baseline import choices
from parity.bench.records import BenchCell, BenchReport
from parity.bench.statistics import ONE_RUN
from parity.reports.bench import beside, ratio, spread

BEGIN, END = "<!-- measured by parity bench -->", "<!-- end of what was measured -->"


def bench_page(report: BenchReport) -> str:
    """Tables of every block: tokens a second by prompt and K, then overall with the model's prediction."""
    lines = [*_head(report)]
    for block in dict.fromkeys(cell.axes.block for cell in report.cells):
        cells = [cell for cell in report.cells if cell.axes.block == block]
        lines += [f"**{block}**", "", *_by_prompt(cells), "", *_overall(report, cells), ""]
        lines += [one for said in choices(cells) for one in (_plain(said), "")]
    lines += [one for said in beside(report) for one in (_plain(said), "")]
    lines += [f"Verdict: {report.verdict}" + ("." if not report.findings else ":"), ""]
    lines += [f"- {_plain(said)}" for said in report.findings]
    return "\n".join(lines).rstrip() + "\n"


def put_between(page: str, made: str) -> str:
    """A page with what stands between its two marks replaced; at its end where it has none."""
    before, mark, rest = page.partition(BEGIN)
    behind = rest.partition(END)[2] if mark else ""
    return f"{before.rstrip()}\n\n{BEGIN}\n\n{made}\n{END}{behind or chr(10)}".lstrip()


def _head(report: BenchReport) -> Iterator[str]:
    machine = report.machine
    versions = ", ".join(f"{name} {one}" for name, one in machine.versions.items())
    told = f"{report.repeats} repeats" if report.repeats > 1 else ONE_RUN
    yield f"{report.case.precision}, {report.case.max_new_tokens} tokens a prompt, {told}, {report.warm_ups} warm-up, "
    yield f"{report.clock} time; {machine.processor}, {machine.cores} cores; {versions}."
    yield from (f"Checkpoint, {note}." for note in report.case.notes)
    yield ""


def _by_prompt(cells: Sequence[BenchCell]) -> Iterator[str]:
    """A row for each cell, a column for each prompt: tokens a second, median and quartiles of the repeats."""
    names = list(dict.fromkeys(name for cell in cells for name in cell.prompts))
    if not names:
        return
    yield "| tokens/s | K | " + " | ".join(map(_plain, names)) + " |"
    yield "|---|---|" + "---|" * len(names)
    for cell in cells:
        if cell.prompts:
            rates = (spread(cell.prompts[name].tokens_per_second, 0) for name in names)
            yield f"| {_row(cell)} | {cell.axes.k or ''} | " + " | ".join(rates) + " |"


def _overall(report: BenchReport, cells: Sequence[BenchCell]) -> Iterator[str]:
    predicted = {one.cell: one for one in report.predictions}
    yield "| all prompts | K | tokens/s | over plain | predicted | roofline | tokens/round | first token ms | peak MB |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for cell in cells:
        one, model = cell.overall, predicted.get(cell.axes.name)
        if one is None:
            yield f"| {_row(cell)} | {cell.axes.k or ''} | {_plain(cell.error)} | | | | | | |"
            continue
        modelled = f"{model.predicted:.2f}{', rounds' * (model.model == 'rounds')}" if model else ""
        allowed = f"{model.roofline:.2f}" if model and model.roofline is not None else ""
        length = f"{one.speculation.mean_acceptance_length:.2f}" if one.speculation else ""
        held = f"{cell.memory[0] / 2**20:.0f}" if cell.memory else ""
        yield (
            f"| {_row(cell)} | {cell.axes.k or ''} | {spread(one.tokens_per_second, 1)} | {ratio(one.over_plain)} | "
            f"{modelled} | {allowed} | {length} | {spread(one.first_token_ms, 0)} | {held} |"
        )


def _row(cell: BenchCell) -> str:
    return _plain(f"{cell.axes.device}, {cell.axes.decoding}")


def _plain(text: str) -> str:
    """Foreign text in a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")
