"""References held against each other, in one screen."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from parity.compare.report import INCONCLUSIVE
from parity.corroborate import Triangulation
from parity.corroborate.pair import DISAGREE
from parity.corroborate.standing import ALONE, CORROBORATED, DISPUTED, OUTVOTED, StageStanding
from parity.golden.trust import enumerated
from parity.reports.dumps import console

STYLES = {CORROBORATED: "green", DISPUTED: "bold red", OUTVOTED: "bold red", ALONE: "dim", INCONCLUSIVE: "yellow"}
SHOWN = 8


def print_triangulation(found: Triangulation) -> None:
    """Stage families, where references part, and the last word."""
    out = console()
    for number, (name, folder) in enumerate(zip(found.names, found.folders, strict=True)):
        out.print(Text.assemble((str(number), "dim"), f"  {name}: {folder}"), soft_wrap=True)
    for pair in found.pairs:
        for reason in dict.fromkeys(pair.shared.values()):
            at = [name for name in pair.shared if pair.shared[name] == reason]
            where = "" if len(at) == len(pair.stages) else f" at {enumerated(at)}"
            out.print(f"{pair.one} and {pair.other} are one opinion{where}: {reason}", soft_wrap=True)
    out.print(_families(found))
    wrong = [one for one in found.stages.values() if one.verdict in (DISPUTED, OUTVOTED)]
    for standing in wrong[:SHOWN]:
        out.print(
            Text(f"{standing.verdict}: {standing.stage}: {_said(standing, found)}", style=STYLES[standing.verdict]),
            soft_wrap=True,
        )
    if len(wrong) > SHOWN:
        out.print(f"... and {len(wrong) - SHOWN} more stages (--json lists all)")
    out.print(_verdict(found), soft_wrap=True)


def _families(found: Triangulation) -> Table:
    """One line a stage family: how many of its stages stand how, and the widest gap between two references."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("stage", CORROBORATED, DISPUTED, OUTVOTED, ALONE, "rel L2", "worst row"):
        table.add_column(heading, justify="left" if heading == "stage" else "right", no_wrap=True)
    families: dict[str, list[StageStanding]] = {}
    for name, standing in found.stages.items():
        parts = ["{l}" if part.isdigit() else part for part in name.split(".")]
        families.setdefault(".".join(parts), []).append(standing)
    for family, members in families.items():
        counts = [
            sum(one.verdict == verdict for one in members) for verdict in (CORROBORATED, DISPUTED, OUTVOTED, ALONE)
        ]
        held = [one for member in members for one in member.held.values()]
        gaps = [
            max((value for one in held if (value := getattr(one, name)) is not None), default=None)
            for name in ("relative_l2", "worst_row")
        ]
        table.add_row(
            family, *(str(count or "") for count in counts), *("" if gap is None else f"{gap:.1e}" for gap in gaps)
        )
    return table


def _said(standing: StageStanding, found: Triangulation) -> str:
    """Who parts from whom, where, and who is wrong as far as that can be said."""
    held = standing.parting
    pairs = [
        f"{found.names[one]} and {found.names[other]}"
        for (one, other), it in standing.held.items()
        if it.verdict == DISAGREE
    ]
    where = f", first at {held.place}" if held.place else ""
    text = f"{'; '.join(pairs)} disagree ({held.why}{where})"
    if standing.verdict == OUTVOTED:
        right = " and ".join(found.names[one] for one in standing.agreeing)
        wrong = " and ".join(found.names[one] for one in standing.blamed)
        return (
            f"{text}; {f'{right} confirm each other' if right else 'as in what it is computed from'}: {wrong} is wrong"
        )
    return f"{text}; none of them is trusted here, a third reference would decide"


def _verdict(found: Triangulation) -> Text:
    """The last line."""
    text = Text(f"references verdict: {found.verdict}", style=STYLES[found.verdict])
    asked = sorted({len(pair.prompts) for pair in found.pairs})
    said = f"; {found.count(CORROBORATED)} of {len(found.stages)} shared stages corroborated"
    said += f" on {' to '.join(map(str, dict.fromkeys((asked[0], asked[-1]))))} of {found.prompts} prompts"
    said += f", {len(found.unseen)} could not be compared ({found.unseen[0]} …)" if found.unseen else ""
    said += f", {len(found.single)} more are one reference's alone" if found.single else ""
    if found.first is not None:
        said += f"; they first part at {found.first.parting.place or found.first.stage}: {_said(found.first, found)}"
    return text.append(said, style="default")
