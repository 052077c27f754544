"""What a comparison prints: stage families, what fails, acceptance, and the last word."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from parity.compare.breakdown import Slice
from parity.compare.places import CORROBORATED
from parity.compare.report import DISPUTED, FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, Acceptance, Report, StageResult, join
from parity.golden.views import DumpView
from parity.policy import STATISTICS
from parity.reports.console import STYLE, console
from parity.reports.dumps import print_dump

UNIT = {"noise": "x noise", "relative": "rel"}
DIRECTED = ("scale", "bias")


def print_report(report: Report, per: str | None = None, slices: Mapping[str, Sequence[Slice]] | None = None) -> None:
    """One comparison: stage families, what fails, its breakdown, acceptance, and the last word."""
    out = console()
    out.print(f"golden {report.golden}\nrun    {report.run}", style="dim", soft_wrap=True)
    out.print(family_table(report, out.width))
    _print_failures(out, report)
    if slices:
        out.print(slice_table(per or "", slices))
    _print_acceptance(out, report.acceptance)
    _print_blind(out, report)
    _print_verdict(out, report)


def print_demo(golden: DumpView, reports: Sequence[Report]) -> None:
    """Both comparisons of a demo side by side."""
    out = console()
    print_dump(golden)
    for report in reports:
        out.print(family_table(report, out.width))
        _print_failures(out, report)
    _print_acceptance(out, reports[-1].acceptance)
    _print_blind(out, reports[-1])
    for report in reports:
        _print_verdict(out, report)


COLUMNS = ("verdict", "stage", "worst", "L2", "row", "max", "mean", "cos")
WIDE = ("rel L2", "floor", "max abs", "mean abs")
"""Plain figures, shown where there is room."""


def family_table(report: Report, width: int) -> Table:
    """One line per stage family, in dataflow order: its verdict and its worst layer."""
    unit = "x noise" if report.precision == "bfloat16" else "relative to the golden's RMS"
    title = f"{report.device} {report.precision}, {report.mode}: L2, worst row, max, mean and cosine in {unit}"
    wide = WIDE if width >= 130 else ()
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in (*COLUMNS, *wide):
        table.add_column(heading, justify="left" if heading in COLUMNS[:3] else "right", no_wrap=True)
    table.add_column("choices, or top-1/5/50")
    if report.witnesses:
        table.add_column(CORROBORATED, justify="right")
    families: dict[str, list[StageResult]] = {}
    for stage in report.stages:
        families.setdefault(stage.family, []).append(stage)
    for family, members in families.items():
        verdict = join(member.verdict for member in members)
        worst = max(members, key=lambda member: (member.verdict == verdict, member.x.get("l2", 0.0)))
        layer = "" if worst.layer is None else f"l={worst.layer}"
        numbers = _numbers(worst)[: len(COLUMNS) - 3 + len(wide)]
        told = [_choices(members), *([_attested(members)] if report.witnesses else [])]
        table.add_row(Text(verdict, style=STYLE[verdict]), family, layer, *numbers, *told)
    return table


def _numbers(stage: StageResult) -> list[str]:
    """The multiples of the noise, then the plain figures; blanks for a stage of choices."""
    if not stage.x:
        return [""] * (len(COLUMNS) - 3 + len(WIDE))
    multiples = [stage.x.get(name) for name in ("l2", "worst_row", "max_abs", "mean_abs", "cosine")]
    plain = [stage.relative_l2, stage.floor_l2, stage.max_abs, stage.mean_abs]
    shown = [
        "" if value is None else _short(value) if stage.judge == "relative" else f"{value:.2f}" for value in multiples
    ]
    return shown + ["" if value is None else _short(value) for value in plain]


def _short(value: float) -> str:
    """Two digits, exponent without padding."""
    return "0" if value == 0 else f"{value:.1e}".replace("e-0", "e-").replace("e+00", "")


def _attested(members: list[StageResult]) -> str:
    """How many of these stages a second reference confirms; or that it does not."""
    if any(member.verdict == DISPUTED for member in members):
        return DISPUTED
    count = sum(CORROBORATED in member.marks for member in members)
    return "" if not count else "yes" if count == len(members) else f"{count} of {len(members)}"


def _choices(members: list[StageResult]) -> str:
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


def _print_failures(out: Console, report: Report) -> None:
    """The findings, and every stage that does not pass, first places included."""
    for finding in report.findings[:12]:
        out.print(Text(f"{finding.kind}: {finding.message}", style=STYLE[FAIL]))
    if len(report.findings) > 12:
        out.print(f"... and {len(report.findings) - 12} more findings (--json lists all)")
    told = {finding.stage for finding in report.findings}
    wrong = [stage for stage in report.stages if stage.verdict not in (PASS, NOT_JUDGED) and stage.stage not in told]
    wrong = [stage for stage in wrong if not (stage.rows_apart and stage.verdict == INCONCLUSIVE)]  # said once, below
    own = [stage for stage in wrong if "inherited" not in stage.marks]
    if report.own_experts is not None:
        verdict = INCONCLUSIVE if report.own_experts.lack else report.own_experts.verdict
        out.print(Text(str(report.own_experts), style=STYLE[verdict]), soft_wrap=True)
    for stage in own[:12]:
        marks = f" ({', '.join(stage.marks)})" if stage.marks else ""
        out.print(
            Text(f"{stage.verdict}{marks}: {stage.stage}: {_why(stage)}", style=STYLE[stage.verdict]), soft_wrap=True
        )
    if len(own) > 12:
        out.print(f"... and {len(own) - 12} more stages (--json lists all)")
    if len(wrong) > len(own):
        grown = sum("grown" in stage.marks for stage in wrong)
        more = f"; it grows in {grown} of them, where --mode local tells what they add" if grown else ""
        out.print(f"{len(wrong) - len(own)} stages behind inherit it{more}", soft_wrap=True)
    for stage in [stage for stage in report.stages if "over-precise" in stage.marks][:3]:
        out.print(
            Text(f"over-precise: {stage.stage}: {stage.x['l2']:.2f} x noise; is this bfloat16?", style=STYLE["warn"])
        )


def _why(stage: StageResult) -> str:
    """The statistics beyond their bound, or the count of wrong choices."""
    if stage.verdict == DISPUTED:
        return stage.note
    if stage.choices and stage.verdict == FAIL:
        said = f"{stage.choices['bug']} of {stage.rows} rows differ beyond tie and noise"
        return (stage.note if stage.against_scores == stage.choices["bug"] else said) + _rows(stage)
    if stage.choices:
        return stage.note
    if not stage.x:
        return "no tensor could be compared"
    over = [
        f"{name.replace('_', ' ')} {stage.x[name]:.3g} {_unit(stage, name)} (ok to {ok:g}, warn to {warn:g})"
        for name, (ok, warn) in stage.bounds.items()
        if stage.x.get(name, 0.0) > ok
    ]
    return "; ".join(over + ([stage.note] if stage.note else [])) + _rows(stage)


def _rows(stage: StageResult) -> str:
    """The first row, the worst one and which rows are bad, behind the figures."""
    told = f", first at {stage.first}" if stage.first else ""
    return told + (f"; {stage.rows_summary}" if stage.rows_summary else "")


def _unit(stage: StageResult, statistic: str) -> str:
    """What a statistic counts in."""
    if statistic in DIRECTED and stage.judge == "noise":
        return "standard errors beyond the floor's"
    return STATISTICS[statistic] or UNIT[stage.judge]


def _print_acceptance(out: Console, acceptance: Acceptance) -> None:
    """Both names of it: acceptance length counts the bonus token, accepted drafts do not."""
    for name, counts in (("reference", acceptance.reference), ("device", acceptance.device)):
        if counts is not None:
            out.print(
                f"acceptance length {counts.acceptance_length:.3f}, accepted drafts {counts.accepted_drafts:.3f}, "
                f"{counts.rounds} rounds: {name}"
            )
    if acceptance.same_prompts is None:
        out.print("device acceptance: not measured, this run generated nothing by itself")
    else:
        out.print(f"free run: {acceptance.same_prompts} of {acceptance.prompts} prompts emit the reference's tokens")


def _print_blind(out: Console, report: Report) -> None:
    """Who else stands behind the golden, and what the policy's pass says nothing about."""
    for said in report.witnesses:
        out.print(f"golden: {said}", soft_wrap=True)
    if report.blind:
        out.print(f"policy {report.policy} cannot see: {report.blind}", soft_wrap=True)
    if report.not_shown:
        out.print(Text(f"not shown: {not_shown(report)}"), soft_wrap=True)
    for said in report.parted:
        out.print(Text(f"not compared: {said}"), soft_wrap=True)
    for said in report.unseen:
        out.print(Text(f"not seen: {said}"), soft_wrap=True)


def not_shown(report: Report) -> str:
    """How many of the stages asked for a device does not show, and where an error in them shows first, by family."""
    families: dict[str, dict[str, None]] = {}
    for name, first in report.not_shown.items():
        hidden = _family(name)
        prefix = _family(first).rpartition(".")[0] + "."
        families.setdefault(_family(first), {})[hidden.removeprefix(prefix)] = None
    blind = families.pop("", {})
    told = [f"{first} ({', '.join(hidden)})" for first, hidden in families.items()]
    count = len(report.not_shown)
    said = f"{count} of {count + len(report.stages)} stages; an error in one of them shows first in {'; '.join(told)}"
    return said + (f"; in none: {', '.join(blind)}" if blind else "")


def _family(name: str) -> str:
    return re.sub(r"[.][0-9]+(?=[.])", ".*", name)


def _print_verdict(out: Console, report: Report) -> None:
    """What the policy did not look at, then the last line: pass, or the first divergent place and its command."""
    unjudged = sorted({stage.family for stage in report.stages if stage.verdict == NOT_JUDGED})
    if unjudged:
        out.print(f"not judged by policy {report.policy}: {', '.join(unjudged)}", soft_wrap=True)
    word = Text(f"{report.mode} verdict: {report.verdict}", style=STYLE[report.verdict])
    if report.verdict != PASS and report.first is not None:
        word.append(f"; first divergent: {report.first_summary}; reproduce: {report.reproduce}", style="default")
    elif report.verdict != PASS:
        said = f"; {report.findings[0].message}" if report.findings else ""
        word.append(f"{said}; reproduce: {report.reproduce}", style="default")
    out.print(word, soft_wrap=True)
