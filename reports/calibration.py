"""What a calibration prints: false alarms by stage family, and how near clean runs come to the bounds."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from parity.calibrate import MODES, Calibration, StageFamily
from parity.reports.dumps import console
from parity.reports.terminal import STYLE

SHORT = {"l2": "L2", "worst_row": "row"}


def print_calibration(found: Calibration, strict: bool) -> None:
    """The table of families, every alarm, and the last word."""
    out = console()
    out.print(f"golden {found.golden}", style="dim", soft_wrap=True)
    out.print(margin_table(found))
    for one in found.alarms + (found.warned if strict else []):
        out.print(Text(f"{one.verdict}: {one.device}, {one.mode}, {one.prompt}: {one.first}"), soft_wrap=True)
    code = found.exit_code(strict)
    counts = f"{len(found.alarms)} false alarms and {len(found.warned)} warnings in {len(found.comparisons)} clean "
    counts += f"comparisons, {found.distinct} of them distinct runs"
    out.print(Text(counts, style=STYLE["fail" if code else "pass"]), soft_wrap=True)


def margin_table(found: Calibration) -> Table:
    """One line per stage family: verdicts, alarms, warnings, and each statistic's clean maximum in % of its bound."""
    names = list(dict.fromkeys(name for family in found.families.values() for name in family.margins))
    title = f"policy {found.policy}, cases of {found.rounds} rounds; clean maximum of each statistic in % of its bound"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("stage family", no_wrap=True)
    for heading in ("verdicts", "alarms", "warned", *(f"{mode}\n{SHORT.get(n, n)}" for mode in MODES for n in names)):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in dict.fromkeys(name for name, _ in found.families):
        both = [found.families.get((name, mode), StageFamily()) for mode in MODES]
        counts = [sum(getattr(one, count) for one in both) for count in ("judged", "alarms", "warned")]
        cells = [_share(one, statistic) for one in both for statistic in names]
        table.add_row(name, *map(str, counts), *cells, style=STYLE["fail"] if counts[1] else None)
    return table


def _share(family: StageFamily, statistic: str) -> str:
    margin = family.margins.get(statistic)
    return "" if margin is None else f"{100 * margin.largest / margin.ok:.0f}"
