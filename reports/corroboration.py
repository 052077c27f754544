"""References compared with each other, in one screen."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from parity.compare.report import INCONCLUSIVE
from parity.corroborate import Triangulation
from parity.corroborate.pair import DISAGREE
from parity.corroborate.standing import ALONE, CORROBORATED, DISPUTED, OUTVOTED, StageStanding
from parity.golden.trust import enumerated
from parity.reports.console import console

STYLES = {CORROBORATED: "green", DISPUTED: "bold red", OUTVOTED: "bold red", ALONE: "dim", INCONCLUSIVE: "yellow"}
SHOWN = 8


def print_triangulation(triangulation: Triangulation) -> None:
    """Stage families, where references part, and the last word."""
    out = console()
    for number, (name, folder) in enumerate(zip(triangulation.names, triangulation.folders, strict=True)):
        out.print(Text.assemble((str(number), "dim"), f"  {name}: {folder}"), soft_wrap=True)
    for pair in triangulation.pairs:
        for reason in dict.fromkeys(pair.shared.values()):
            at = [name for name in pair.shared if pair.shared[name] == reason]
            where = "" if len(at) == len(pair.stages) else f" at {enumerated(at)}"
            out.print(f"{pair.one} and {pair.other} are one opinion{where}: {reason}", soft_wrap=True)
    out.print(_families(triangulation))
    wrong = [standing for standing in triangulation.stages.values() if standing.verdict in (DISPUTED, OUTVOTED)]
    for standing in wrong[:SHOWN]:
        out.print(
            Text(
                f"{standing.verdict}: {standing.stage}: {_said(standing, triangulation)}",
                style=STYLES[standing.verdict],
            ),
            soft_wrap=True,
        )
    if len(wrong) > SHOWN:
        out.print(f"... and {len(wrong) - SHOWN} more stages (--json lists all)")
    out.print(_verdict(triangulation), soft_wrap=True)


def _families(triangulation: Triangulation) -> Table:
    """One line a stage family: how many of its stages stand how, and the widest gap between two references."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("stage", CORROBORATED, DISPUTED, OUTVOTED, ALONE, "rel L2", "worst row"):
        table.add_column(heading, justify="left" if heading == "stage" else "right", no_wrap=True)
    families: dict[str, list[StageStanding]] = {}
    for name, standing in triangulation.stages.items():
        parts = ["{l}" if part.isdigit() else part for part in name.split(".")]
        families.setdefault(".".join(parts), []).append(standing)
    for family, members in families.items():
        verdicts = [member.verdict for member in members]
        counts = [verdicts.count(verdict) for verdict in (CORROBORATED, DISPUTED, OUTVOTED, ALONE)]
        compared = [pair for member in members for pair in member.held.values()]
        gaps = [
            max((value for pair in compared if (value := getattr(pair, name)) is not None), default=None)
            for name in ("relative_l2", "worst_row")
        ]
        table.add_row(
            family, *(str(count or "") for count in counts), *("" if gap is None else f"{gap:.1e}" for gap in gaps)
        )
    return table


def _said(standing: StageStanding, triangulation: Triangulation) -> str:
    """Who parts from whom, where, and who is wrong as far as that can be said."""
    pairs = [
        f"{triangulation.names[left]} and {triangulation.names[right]}"
        for (left, right), compared in standing.held.items()
        if compared.verdict == DISAGREE
    ]
    text = f"{'; '.join(pairs)} disagree"
    if (parting := standing.parting) is not None:
        text += f" ({parting.why}{f', first at {parting.place}' if parting.place else ''})"
    if standing.verdict == OUTVOTED:
        right = " and ".join(triangulation.names[number] for number in standing.agreeing)
        wrong = " and ".join(triangulation.names[number] for number in standing.blamed)
        return (
            f"{text}; {f'{right} confirm each other' if right else 'as in what it is computed from'}: {wrong} is wrong"
        )
    return f"{text}; none of them is trusted here, a third reference would decide"


def _verdict(triangulation: Triangulation) -> Text:
    """The last line."""
    text = Text(f"references verdict: {triangulation.verdict}", style=STYLES[triangulation.verdict])
    asked = sorted({len(pair.prompts) for pair in triangulation.pairs})
    said = f"; {triangulation.count(CORROBORATED)} of {len(triangulation.stages)} shared stages corroborated"
    said += f" on {' to '.join(map(str, dict.fromkeys((asked[0], asked[-1]))))} of {triangulation.prompts} prompts"
    said += (
        f", {len(triangulation.unseen)} could not be compared ({triangulation.unseen[0]} …)"
        if triangulation.unseen
        else ""
    )
    said += f", {len(triangulation.single)} more are one reference's alone" if triangulation.single else ""
    if (first := triangulation.first) is not None:
        place = first.parting.place if first.parting else None
        said += f"; they first part at {place or first.stage}: {_said(first, triangulation)}"
    return text.append(said, style="default")
