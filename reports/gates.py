"""Gates on one screen: a line per check with its evidence, then the last word."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from parity.compare.report import NOT_JUDGED, PASS
from parity.gates.gate import Check, GateReport, GateResult
from parity.reports.console import STYLE, console
from parity.reproducing import command_line


def print_names(gates: Mapping[str, str]) -> None:
    """Every gate and what it asks."""
    for name, what in gates.items():
        console().print(f"{name:<12}{what}", soft_wrap=True)


def print_result(result: GateResult) -> None:
    """The checks of one gate, as soon as it ends."""
    out = console()
    for number, check in enumerate(result.checks):
        out.print(line(check, "" if number else result.gate), soft_wrap=not out.is_terminal)


def line(check: Check, gate: str) -> Text:
    """Verdict, gate, check, evidence; the place where a failure first shows."""
    text = Text(f"{check.verdict:<13}", style=STYLE[check.verdict])
    text.append(f"{gate:<12}", style="bold default")
    text.append(f"{check.name}: ", style="default")
    text.append(check.evidence, style="default")
    if check.place is not None and check.verdict != PASS and str(check.place) not in check.evidence:
        text.append(f"; first at {check.place}", style="default")
    return text


def print_gates(gates: GateReport, what: str = "gates") -> None:
    """The last line: the verdict, and the first gate that does not pass with the command that repeats it."""
    for said in gates.unseen:
        console().print(Text(f"not seen: {said}"), soft_wrap=True)
    for said in gates.left_out:
        console().print(Text(f"left out: {said}"), soft_wrap=True)
    word = Text(f"{'quick' if gates.quick else what} verdict: {gates.verdict}", style=STYLE[gates.verdict])
    if gates.quick and not any(result.verdict == gates.verdict for result in gates.results):
        whole = command_line("gate", golden=gates.golden, device=gates.device, precision=gates.precision)
        word.append(f"; nothing fails in what was asked; a pass needs the whole: {whole}", style="default")
    elif what == "gates" and gates.not_run and gates.exit_code == 0:
        word.append(f"; not run: {', '.join(gates.not_run)}: no verdict on the device", style="default")
    for result in gates.results:
        if result.verdict == gates.verdict and result.verdict not in (PASS, NOT_JUDGED):
            check = result.first
            place = f" at {check.place}" if check and check.place else ""
            word.append(
                f"; {result.gate}: {check.name if check else ''}{place}; reproduce: {result.reproduce}", style="default"
            )
            break
    console().print(word, soft_wrap=True)
