"""What the commands print: tables on standard output, and the same content as plain data for --json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from parity.compare.report import FAIL, PASS, Report, StageResult, join
from parity.golden.store import Dump

STYLE = {"pass": "green", "warn": "yellow", "fail": "bold red", "inconclusive": "magenta"}
UNIT = {"noise": "x noise", "relative": "rel"}


def console() -> Console:
    """Standard output; wide enough for a table where it is no terminal."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=140)


def print_report(report: Report) -> None:
    """One comparison: stage families, what fails, acceptance, and the last word."""
    out = console()
    out.print(f"[bold]{report.device}[/] {report.precision}, {report.mode}, policy {report.policy}")
    out.print(f"[dim]golden {report.golden}\nrun    {report.run}[/]", soft_wrap=True)
    out.print(family_table(report.stages, f"L2 and worst row in {_unit(report)}"))
    _print_failures(out, report)
    _print_acceptance(out, [report])
    _print_verdict(out, report)


def print_demo(golden: Dump, reports: Sequence[Report]) -> None:
    """Both comparisons of a demo side by side."""
    out = console()
    print_dump(golden)
    for report in reports:
        out.print(family_table(report.stages, f"{report.mode}: {report.device} {report.precision}, L2 and worst row in {_unit(report)}"))
        _print_failures(out, report)
    _print_acceptance(out, reports)
    for report in reports:
        _print_verdict(out, report)


def family_table(stages: Iterable[StageResult], title: str) -> Table:
    """One line per stage family, in dataflow order: its worst layer and its verdict."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading, justify in (
        ("verdict", "left"),
        ("stage", "left"),
        ("worst", "left"),
        ("L2", "right"),
        ("worst row", "right"),
        ("rel L2", "right"),
        ("floor", "right"),
        ("max abs", "right"),
        ("mean abs", "right"),
        ("1-cos", "right"),
        ("choices, or top-1/5/50", "left"),
    ):
        table.add_column(heading, justify=justify, no_wrap=True)
    families: dict[str, list[StageResult]] = {}
    for stage in stages:
        families.setdefault(stage.family, []).append(stage)
    for family, members in families.items():
        table.add_row(*_family_row(family, members))
    return table


def _family_row(family: str, members: list[StageResult]) -> list[str | Text]:
    verdict = join(member.verdict for member in members)
    worst = max(members, key=lambda member: (member.verdict == verdict, member.x.get("l2", 0.0)))
    layer = "" if worst.layer is None else f"l={worst.layer}"
    numbers = [""] * 7
    if worst.x:
        numbers = [
            f"{worst.x['l2']:.2f}" if worst.judge == "noise" else f"{worst.x['l2']:.1e}",
            f"{worst.x['worst_row']:.2f}" if worst.judge == "noise" else f"{worst.x['worst_row']:.1e}",
            f"{worst.relative_l2:.1e}",
            f"{worst.floor_l2:.1e}",
            f"{worst.max_abs:.1e}",
            f"{worst.mean_abs:.1e}",
            f"{max(1 - worst.cosine, 0.0):.0e}",
        ]
    return [Text(verdict, style=STYLE[verdict]), family, layer, *numbers, _choices(members)]


def _choices(members: list[StageResult]) -> str:
    """Same / tie / noise / bug counts of choices, or the top-k overlap of logits."""
    if members[0].topk:
        return " ".join(f"{share:.3f}" for share in members[0].topk.values())
    counts = {name: sum(member.choices.get(name, 0) for member in members) for name in members[0].choices}
    shown = [f"{count} {name}" for name, count in counts.items() if count or name == "same"]
    return ", ".join(shown)


def _print_failures(out: Console, report: Report) -> None:
    """The findings, and every stage that is no pass, first places included."""
    for finding in report.findings[:12]:
        out.print(Text(f"{finding.kind}: {finding.message}", style=STYLE[FAIL]))
    if len(report.findings) > 12:
        out.print(f"... and {len(report.findings) - 12} more findings (--json lists all)")
    for stage in [stage for stage in report.stages if stage.verdict != PASS][:12]:
        out.print(Text(f"{stage.verdict}: {stage.stage}: {_why(stage)}", style=STYLE[stage.verdict]), soft_wrap=True)


def _why(stage: StageResult) -> str:
    """The statistics beyond their bound, or the count of wrong choices."""
    if stage.choices:
        return f"{stage.choices['bug']} of {stage.rows} rows differ beyond tie and noise"
    if not stage.x:
        return "no tensor could be compared"
    over = [
        f"{name.replace('_', ' ')} {stage.x[name]:.3g} {UNIT[stage.judge]} (ok to {ok:g}, warn to {warn:g})"
        for name, (ok, warn) in stage.bounds.items()
        if stage.x[name] > ok
    ]
    return "; ".join(over) + (f", first at {stage.first}" if stage.first else "")


def _print_acceptance(out: Console, reports: Sequence[Report]) -> None:
    """Both names of it: acceptance length counts the bonus token, accepted drafts do not."""
    one = reports[0].acceptance
    out.print(
        f"acceptance length  reference {one.reference:.3f}  device {one.device:.3f}   "
        f"accepted drafts  reference {one.accepted_reference:.3f}  device {one.accepted_device:.3f}   "
        f"rounds {one.rounds_reference} / {one.rounds_device}"
    )
    out.print(f"free run: {one.same_prompts} of {one.prompts} prompts emit the reference's tokens")


def _print_verdict(out: Console, report: Report) -> None:
    """The last line: pass, or the first divergent place and the command that shows it again."""
    word = Text(f"{report.mode} verdict: {report.verdict}", style=STYLE[report.verdict])
    if report.verdict != PASS and report.first is not None:
        word.append(f"; first divergent: {report.first}; reproduce: {report.reproduce}", style="default")
    elif report.verdict != PASS:
        word.append(f"; reproduce: {report.reproduce}", style="default")
    out.print(word, soft_wrap=True)


def _unit(report: Report) -> str:
    return "x noise" if report.precision == "bfloat16" else "relative error"


def print_dump(dump: Dump, stages: bool = False) -> dict[str, Any]:
    """What a folder holds; the same as data."""
    out, manifest = console(), dump.manifest
    case = manifest.case
    rounds = [length for prompt in case.prompts for length in prompt.generation.acceptance_length]
    drafts = [count for prompt in case.prompts for count in prompt.generation.accepted_drafts]
    data = {
        "folder": str(dump.folder),
        "kind": manifest.kind,
        "producer": manifest.producer.model_dump(exclude={"modules"}),
        "target": manifest.model.target.path,
        "drafter": manifest.model.drafter.path,
        "k": case.k,
        "mode": case.mode,
        "precision": case.precision,
        "prompts": len(case.prompts),
        "new_tokens": sum(len(prompt.generation.emitted) for prompt in case.prompts),
        "rounds": len(rounds),
        "acceptance_length": sum(rounds) / len(rounds) if rounds else 0.0,
        "accepted_drafts": sum(drafts) / len(drafts) if drafts else 0.0,
        "tensors": len(manifest.tensors),
        "variants": sorted(dump.variants()),
        "stages": list(manifest.stages),
    }
    out.print(f"[bold]{manifest.kind}[/] {dump.folder}", soft_wrap=True)
    out.print(f"  producer  {manifest.producer.name}; {_versions(manifest.producer.versions)}", soft_wrap=True)
    out.print(f"  pair      {data['target']} + {data['drafter']}, K={case.k}, {case.mode}, {case.precision}", soft_wrap=True)
    out.print(
        f"  case      {data['prompts']} prompts, {data['new_tokens']} new tokens, {data['rounds']} verify rounds, "
        f"acceptance length {data['acceptance_length']:.3f} (accepted drafts {data['accepted_drafts']:.3f})"
    )
    out.print(f"  tensors   {data['tensors']} in {len(manifest.stages)} stages, {', '.join(data['variants'])}")
    if stages:
        out.print(_stage_table(dump))
    return data


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _stage_table(dump: Dump) -> Table:
    """Every declared stage with its axes, and the shape and dtype of its first tensor."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("stage", "axes", "first shape", "dtype", "tensors"):
        table.add_column(heading, no_wrap=True)
    first, count = {}, {}
    main = "float32" if dump.manifest.kind == "golden" else dump.manifest.case.precision
    for row in dump.manifest.tensors:
        if row.variant == main:
            stage = row.place[2]
            first.setdefault(stage, row)
            count[stage] = count.get(stage, 0) + 1
    for stage in dump.manifest.stages:
        row = first.get(stage)
        if row is None:
            table.add_row(stage, "", Text("none", style="red"), "", "0")
        else:
            table.add_row(stage, ",".join(row.axes), "x".join(map(str, row.shape)), row.dtype, str(count[stage]))
    return table
