"""What a walk through the contract prints: every line with its state, and what breaks it."""

from __future__ import annotations

from rich.text import Text

from parity.contract.lines import BROKEN, LINES, OK, Checked
from parity.reports.console import console, say

STYLE = {OK: "green", BROKEN: "bold red"}
SHOWN = 4
"""Breaches of one line that are printed."""
PAGE = "docs/adding-a-device.md"


def print_checked(checked: Checked) -> None:
    """One line each; what a broken one says and what breaks it below; the verdict last."""
    out = console()
    out.print(f"{checked.device} {checked.precision}, K={checked.k}: the contract of {PAGE}", style="bold")
    for line, state, said in checked.lines:
        why = "" if state == BROKEN else "".join(f" ({one})" for one in said)
        say(out, f"{line}{why}", Text.assemble((f"{state:13}", STYLE.get(state, "dim")), "  "))
        if state == BROKEN:
            more = [f"... and {len(said) - SHOWN} more (--json lists all)"] if len(said) > SHOWN else []
            for one in (f"the contract: {LINES[line].says}", *said[:SHOWN], *more):
                say(out, one, " " * 15)
    word = Text(f"contract verdict: {checked.verdict}", style=STYLE[OK if checked.verdict == "pass" else BROKEN])
    if checked.broken:
        first = next(said[0] for line, _, said in checked.lines if line == checked.broken[0])
        others = f" ({len(checked.broken)} lines are broken)" if len(checked.broken) > 1 else ""
        word.append(f"; {checked.broken[0]}: {first}{others}", style="default")
    elif checked.stopped:
        word.append(f"; {checked.stopped}", style="default")
    say(out, word)
