"""Engines side by side: the worst of each stage family in x noise, and what parts every two of them."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from parity.compare.report import Report, StageResult
from parity.engines import MODES, EngineMatrix
from parity.golden.fields import Mode
from parity.reports.console import STYLE, console

UNITS = {"bfloat16": "x noise", "float32": "relative to the golden's RMS"}
TOP = """# Engines

Each engine's largest relative L2 error by stage family, {unit} (the worst layer; chained: errors travel; local: every
stage starts from the golden's input), and what parts every two engines on the same tokens, in the same unit and
under the same bounds. Choices count the rows that differ. Printed by

    parity engines --golden GOLDEN{options} --markdown

over {prompts} prompts and {rounds} verify rounds. An error that two engines share does not show between them: only the
golden's columns say whether either is right.

- `numpy` runs the kernels as they are. bfloat16 values are kept as float32 and rounded after every operation.
- `xla` compiles them with JAX (`pip install 'parity-harness[xla]' -c constraints.txt`), on the CPU or on a GPU that JAX
  sees, with the same roundings as `reduce_precision`, which XLA may not drop. A layer is a program, compiled once for
  each width (prompts in multiples of 32, verify with 0 to K drafts, a draft) and each span of the cache (multiples of
  64); caches are donated. Where a tap watches, the programs are the steps between two stages. A run's manifest counts
  them (`producer.notes`). Programs are kept on disk, at most 1 GiB, in `$XDG_CACHE_HOME/parity/xla` or JAX's own cache
  folder. A device with a planted fault is not compiled.
- `torch` is a device with [kernels of its own](torch-device.md).
- `nkipy` traces them with NKIPy and runs the HLO that the Neuron compiler would get on XLA:CPU ([neuron](neuron.md)).
  It is in the matrix where NKIPy is installed.
"""


def print_matrix(matrix: EngineMatrix) -> None:
    """Two tables, the absent engines, the last word."""
    out = console()
    out.print(f"golden {matrix.golden}", style="dim", soft_wrap=True)
    for mode in MODES:
        title = f"{matrix.precision}, {mode}: largest L2 by stage family, {UNITS[matrix.precision]}"
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for place, heading in enumerate(("stage", *matrix.columns(mode))):
            table.add_column(heading, justify="right" if place else "left")
        for row in _rows(matrix, mode):
            table.add_row(*row)
        out.print(table)
    for name, why in matrix.absent.items():
        out.print(f"absent: {name}: {why}", soft_wrap=True)
    for report in matrix.reports:
        if report.exit_code:
            text = f"{report.verdict}: {report.device}, {report.mode}"
            text += f", first at {report.first}" if report.first else ""
            text += f"; reproduce: {report.reproduce}"
            out.print(Text(text, style=STYLE[report.verdict]), soft_wrap=True)
    out.print(Text(f"engines verdict: {matrix.verdict}", style=STYLE[matrix.verdict]))


def page(matrix: EngineMatrix) -> str:
    """The same as a page."""
    any_report = matrix.reports[0]
    options = "" if matrix.precision == "bfloat16" else f" --precision {matrix.precision}"
    lines = [
        TOP.format(
            unit=f"in {UNITS[matrix.precision]}" if matrix.precision == "bfloat16" else UNITS[matrix.precision],
            options=options,
            prompts=any_report.acceptance.prompts,
            rounds=any_report.acceptance.reference.rounds,
        )
    ]
    for mode in MODES:
        columns = matrix.columns(mode)
        lines += [f"## {mode.capitalize()}\n", f"| stage | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
        lines += ["| " + " | ".join(row) + " |" for row in _rows(matrix, mode)]
        lines.append("")
    lines += [f"Absent when this was printed: {name} ({why})\n" for name, why in matrix.absent.items()]
    return "\n".join([*lines, f"Verdict: {matrix.verdict}.", ""])


def _rows(matrix: EngineMatrix, mode: Mode) -> Iterator[tuple[str, ...]]:
    """One line a stage family, and one with the verdicts."""
    reports = list(matrix.columns(mode).values())
    families = [_families(report) for report in reports]
    for name in families[0]:
        yield name, *(_figure(stages.get(name, [])) for stages in families)
    yield "verdict", *(report.verdict for report in reports)


def _families(report: Report) -> dict[str, list[StageResult]]:
    families: dict[str, list[StageResult]] = {}
    for stage in report.stages:
        families.setdefault(stage.family, []).append(stage)
    return families


def _figure(members: list[StageResult]) -> str:
    """The worst layer's L2, or how many rows chose otherwise."""
    if members and members[0].choices:
        return f"{sum(sum(stage.choices.values()) - stage.choices.get('same', 0) for stage in members)} differ"
    errors = [stage.x["l2"] for stage in members if "l2" in stage.x]
    return "" if not errors else f"{max(errors):.2f}" if members[0].judge == "noise" else f"{max(errors):.1e}"
