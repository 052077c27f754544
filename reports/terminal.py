"""The tables of a comparison: stage families, and slices of the worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from parity.compare.places import CORROBORATED
from parity.compare.report import DISPUTED, FORCED, PASS, Report, StageResult
from parity.golden.views import DumpView
from parity.reports.console import STYLE, console, families_counted, say
from parity.reports.dumps import print_dump
from parity.reports.verdict import print_pass, print_verdict

if TYPE_CHECKING:
    from parity.compare.breakdown import Slice


def print_report(
    report: Report,
    per: str | None = None,
    slices: Mapping[str, Sequence[Slice]] | None = None,
    whole: bool = False,
) -> None:
    """One comparison: the families that do not pass, what the verdict rests on, and the last word.

    Args:
        whole: every family, those that pass as well.
    """
    out = console()
    out.print(f"golden {report.golden}\nrun    {report.run}", style="dim", soft_wrap=True)
    _print_families(out, report, whole)
    if slices:
        out.print(slice_table(per or "", slices))
    print_verdict(out, report)


def print_demo(golden: DumpView, reports: Sequence[Report], whole: bool = False) -> None:
    """Both comparisons of a demo: the families that do not pass, and both verdicts.

    Args:
        whole: every family, and what each verdict rests on and cannot see.
    """
    out = console()
    print_dump(golden)
    for report in reports:
        out.print()
        _print_families(out, report, whole)
        (print_verdict if whole or report.verdict != PASS else print_pass)(out, report)


ROOMY = 130
"""Columns in which every figure has one of its own."""


def _print_families(out: Console, report: Report, whole: bool) -> None:
    """The table of the families that do not pass, or of all; how many pass, and on what."""
    families: dict[str, list[StageResult]] = {}
    for stage in report.stages:
        families.setdefault(stage.family, []).append(stage)
    said = report.families
    listed = {family: members for family, members in families.items() if whole or said[family] not in (PASS, FORCED)}
    unit = "x noise" if report.precision == "bfloat16" else "relative to the golden's RMS"
    say(out, Text(f"{report.device} {report.precision}, {report.mode}: figures in {unit}", style="bold"))
    if listed:
        table = family_table if out.width >= ROOMY else narrow_table
        out.print(table(report, listed, said))
    more = "" if whole else "; --all lists every one"
    say(out, f"{families_counted(said, len(report.stages))}{more}")


def _worst(verdict: str, members: Sequence[StageResult]) -> StageResult:
    return max(members, key=lambda member: (member.verdict == verdict, member.x.get("l2", 0.0)))


Families = Mapping[str, Sequence[StageResult]]


def narrow_table(report: Report, families: Families, said: Mapping[str, str]) -> Table:
    """One line per family for a narrow terminal: its verdict, its worst layer and the figures that matter."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), collapse_padding=True)
    for heading in ("verdict", "stage", "worst: L2, row, max; or choices"):
        table.add_column(heading, overflow="fold", no_wrap=False)
    for family, members in families.items():
        worst = _worst(said[family], members)
        layer = "" if worst.layer is None else f"l={worst.layer}"
        figures = [_figure(worst, name) for name in ("l2", "worst_row", "max_abs")] if worst.x else [_choices(members)]
        attested = [_attested(members)] if report.witnesses else []
        told = "  ".join(filter(None, (layer, *figures, *attested)))
        table.add_row(Text(said[family], style=STYLE.get(said[family], "dim")), family, told)
    return table


COLUMNS = ("verdict", "stage", "worst", "L2", "row", "max", "mean", "cos")
WIDE = ("rel L2", "floor", "max abs", "mean abs")
"""Plain figures, shown where there is room."""


def family_table(report: Report, families: Families, said: Mapping[str, str]) -> Table:
    """One line per stage family, in dataflow order: its verdict and its worst layer."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in (*COLUMNS, *WIDE):
        table.add_column(heading, justify="left" if heading in COLUMNS[:3] else "right", no_wrap=True)
    table.add_column("choices, top-1/5/50")
    if report.witnesses:
        table.add_column(CORROBORATED, justify="right")
    for family, members in families.items():
        worst = _worst(said[family], members)
        layer = "" if worst.layer is None else f"l={worst.layer}"
        told = [_choices(members), *([_attested(members)] if report.witnesses else [])]
        table.add_row(Text(said[family], style=STYLE.get(said[family], "dim")), family, layer, *_numbers(worst), *told)
    return table


def _numbers(stage: StageResult) -> list[str]:
    """The multiples of the noise, then the plain figures; blanks for a stage of choices."""
    if not stage.x:
        return [""] * (len(COLUMNS) - 3 + len(WIDE))
    multiples = [_figure(stage, name) for name in ("l2", "worst_row", "max_abs", "mean_abs", "cosine")]
    plain = [stage.relative_l2, stage.floor_l2, stage.max_abs, stage.mean_abs]
    return multiples + ["" if value is None else _short(value) for value in plain]


def _figure(stage: StageResult, name: str) -> str:
    """A statistic in the unit of its bound; '' where it has none."""
    value = stage.x.get(name)
    if value is None:
        return ""
    return _short(value) if stage.judge == "relative" else f"{value:.2f}" if abs(value) < 1000 else f"{value:.0f}"


def _short(value: float) -> str:
    """Two digits, exponent without padding."""
    return "0" if value == 0 else f"{value:.1e}".replace("e-0", "e-").replace("e+00", "")


def _attested(members: Sequence[StageResult]) -> str:
    """How many of these stages a second reference confirms; or that it does not."""
    if any(member.verdict == DISPUTED for member in members):
        return DISPUTED
    count = sum(CORROBORATED in member.marks for member in members)
    return "" if not count else "yes" if count == len(members) else f"{count} of {len(members)}"


def _choices(members: Sequence[StageResult]) -> str:
    """Same / tie / noise / bug counts of choices, or the top-k overlap of logits."""
    if members[0].topk:
        return " ".join(f"{share:.3f}" for share in members[0].topk.values())
    counts = {name: sum(member.choices.get(name, 0) for member in members) for name in members[0].choices}
    shown = [f"{count} {name}" for name, count in counts.items() if count or name == "same"]
    return ", ".join(shown)


def slice_table(per: str, slices: Mapping[str, Sequence[Slice]]) -> Table:
    """The worst positions, heads or experts of each stage."""
    table = Table(title=f"worst by {per}", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for heading in ("stage", per, "rows", "x noise", "rel L2", "floor"):
        table.add_column(heading, justify="left" if heading == "stage" else "right", no_wrap=True)
    for stage, worst in slices.items():
        for part in worst:
            figures = (f"{part.x:.2f}", _short(part.relative_l2), _short(part.floor_l2))
            table.add_row(stage, str(part.label), str(part.rows), *figures)
    return table
