"""What a calibration prints: false alarms by stage family, and how near clean runs come to the bounds."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from parity.calibrate import MODES, Calibration, StageFamily
from parity.gates.clean import GateCalibration
from parity.reports.console import STYLE, console

SHORT = {"l2": "L2", "worst_row": "row", "worst_column": "column"}


def print_calibration(calibration: Calibration, strict: bool) -> None:
    """The table of families, every alarm, and the last word."""
    out = console()
    out.print(f"golden {calibration.golden}", style="dim", soft_wrap=True)
    out.print(margin_table(calibration))
    for alarm in calibration.alarms + (calibration.warned if strict else []):
        out.print(Text(f"{alarm.verdict}: {alarm.device}, {alarm.mode}, {alarm.prompt}: {alarm.first}"), soft_wrap=True)
    code = calibration.exit_code(strict)
    counts = f"{len(calibration.alarms)} false alarms and {len(calibration.warned)} warnings in "
    counts += f"{len(calibration.comparisons)} clean comparisons, {calibration.distinct} of them distinct runs"
    out.print(Text(counts, style=STYLE["fail" if code else "pass"]), soft_wrap=True)


def print_clean_gates(found: GateCalibration, strict: bool) -> None:
    """Runs of each gate by device, every alarm, and the last word."""
    out = console()
    out.print(f"golden {found.golden}", style="dim", soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("gate", "device", "runs", "judged", "checks", "alarms", "warned"):
        table.add_column(heading, justify="left" if heading in ("gate", "device") else "right", no_wrap=True)
    for gate, device in dict.fromkeys((run.gate, run.device) for run in found.runs):
        cells = [
            sum((run.gate, run.device) == (gate, device) for run in runs)
            for runs in (found.runs, found.judged, found.alarms, found.warned)
        ]
        checks = sum(run.judged for run in found.runs if (run.gate, run.device) == (gate, device))
        table.add_row(
            gate, device, *map(str, (*cells[:2], checks, *cells[2:])), style=STYLE["fail"] if cells[2] else None
        )
    out.print(table)
    for run in found.alarms + (found.warned if strict else []):
        said = f"{run.verdict}: {run.gate}, {run.device}, {' + '.join(run.prompts)}: {run.said}"
        out.print(Text(said), soft_wrap=True)
    counts = f"{len(found.alarms)} false alarms and {len(found.warned)} warnings in {len(found.judged)} clean runs of "
    counts += f"gates with a verdict, of {len(found.runs)}"
    out.print(Text(counts, style=STYLE["fail" if found.exit_code(strict) else "pass"]), soft_wrap=True)


def margin_table(calibration: Calibration) -> Table:
    """A line per stage family and mode: counts, and each statistic's clean maximum in % of its bound."""
    names = list(dict.fromkeys(name for family in calibration.families.values() for name in family.margins))
    title = f"policy {calibration.policy}, cases of {calibration.rounds} rounds; "
    title += "clean maximum of each statistic in % of its bound"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("stage family", "mode"):
        table.add_column(heading, no_wrap=True)
    for heading in ("verdicts", "alarms", "warned", *(SHORT.get(name, name) for name in names)):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in dict.fromkeys(name for name, _ in calibration.families):
        for mode in (mode for mode in MODES if (name, mode) in calibration.families):
            family = calibration.families[name, mode]
            counts = (family.judged, family.alarms, family.warned)
            cells = [_share(family, statistic) for statistic in names]
            table.add_row(name, mode, *map(str, counts), *cells, style=STYLE["fail"] if family.alarms else None)
    return table


def _share(family: StageFamily, statistic: str) -> str:
    margin = family.margins.get(statistic)
    return "" if margin is None else f"{100 * margin.largest / margin.ok:.0f}"
