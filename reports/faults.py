"""Planted faults: the list, the page docs/faults.md, and what became of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.text import Text

from parity.fault_choice import PlantableFault
from parity.faults import FaultComparison, FaultOutcome
from parity.reports.console import STYLE, console

HEAD = """# Planted faults

Defects that real implementations had, and variations of them that a port can have, each planted alone in the device
from outside its kernels (`device/faults/`).
`parity faults run --all` plants one after the other: a gate must turn red, a local comparison must name the stage, and
a chained one must say where the fault first shows and mark everything behind it as inherited. Where a gate other than
`stages` is named, that gate must turn red. A fault that ends in a
crash or an inconclusive verdict is not caught. `--device parity.device.faults:ID`, hyphens as underscores, is the
device with that fault, for every command. Printed by `parity faults list --markdown`; a test keeps this page current.

*First stage* is that of a local comparison, with its round where the golden does not decide it; *text* says whether
the emitted tokens stay the same (up to ties) or may change: where they stay, token equality sees nothing.
*Seen in* gives repository and issue; "class of" one is a variation of it, and words without a number say how a port
comes by the defect. *Local only* says that a chained comparison's noise is as
large; *TP n* what needs n tensor-parallel ranks. *Precision* is that of the device in which a fault is planted and
shows: bfloat16's own rounding is as large as what is marked float32. *Drafter* is the family that a fault is planted
in: `parity faults run --all --family eagle-3` takes those of EAGLE-3
([families](drafters.md)), with `--partial-kv 1+2+1x8` those of [partial KV](partial-kv.md), and with
`--kv-cache fp8_e4m3` those of [quantised caches](fp8-caches.md).
"""
COLUMNS = ("fault", "what is wrong", "first stage", "gate", "precision", "text", "drafter", "seen in")


def plain(fault: PlantableFault) -> dict[str, Any]:
    """A fault's metadata, for JSON."""
    names = (
        "id",
        "family",
        "what",
        "stage",
        "round",
        "chained",
        "chained_round",
        "sites",
        "gate",
        "same_text",
        "seen",
        "precision",
        "tp",
        "drafters",
        "partial_kv",
        "kv_cache",
    )
    return {name: getattr(fault, name) for name in names}


def cells(fault: PlantableFault) -> tuple[str, ...]:
    """A fault's row in a table of `COLUMNS`."""
    round_ = "" if fault.round is None or not fault.stage else f", round {fault.round}"
    where = f"{fault.stage}{round_}" if fault.stage else "-"
    where += " (local only)" if fault.stage and not fault.chained else ""
    where += f" (TP {fault.tp})" if fault.tp > 1 else ""
    where += f" (partial KV {fault.partial_kv})" if fault.partial_kv else ""
    where += f" ({fault.kv_cache})" if fault.kv_cache else ""
    where += f" ({fault.loop} loop)" if fault.loop else ""
    text = "same" if fault.same_text else "may change"
    drafters = fault.drafters[0] if len(fault.drafters) == 1 else "either"
    return fault.id, fault.what, where, fault.gate or "none yet", fault.precision, text, drafters, fault.seen


def print_list(
    faults: Iterable[PlantableFault], left_out: Mapping[str, str], conditional: Sequence[PlantableFault] = ()
) -> None:
    """One line a fault, those under a condition behind the others, then what is not planted and why."""
    rows = [
        [cell for name, cell in zip(COLUMNS, cells(fault), strict=True) if name != "what is wrong"]
        for fault in (*faults, *conditional)
    ]
    heads = [name for name in COLUMNS if name != "what is wrong"]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    out = console()
    for row in (heads, *rows):
        out.print(
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip(),
            soft_wrap=True,
            highlight=False,
        )
    said = f", {len(conditional)} of them under a condition" if conditional else ""
    out.print(f"{len(rows)} faults{said}; not planted:", style="bold")
    for name, why in left_out.items():
        out.print(f"{name}: {why}", soft_wrap=True)


CONDITIONAL = """
## Under a condition

Any fault of one lane and one rank can be held to a condition: `parity faults run "ID where CONDITION"` plants it so
([how](adding-a-fault.md#under-a-condition)). `parity faults run --conditional` plants these, drawn once and for all.
"""


def page(
    faults: Iterable[PlantableFault], left_out: Mapping[str, str], conditional: Iterable[PlantableFault] = ()
) -> str:
    """The whole of docs/faults.md."""
    lines, family = [HEAD], ""
    for fault in faults:
        if fault.family != family:
            family = fault.family
            lines += [f"\n## {family.capitalize()}\n", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        lines.append(f"| {' | '.join(cells(fault))} |")
    lines += [CONDITIONAL, "| fault | first stage |", "|---" * 2 + "|"]
    lines += [f"| {fault.id} | {fault.stage} |" for fault in conditional]
    lines += ["\n## Not planted\n", *(f"- `{name}`: {why}" for name, why in left_out.items())]
    return "\n".join(lines) + "\n"


def print_outcome(outcome: FaultOutcome) -> None:
    """One line: killed or survived, the gate, both places, the text."""
    text = Text(f"{'killed' if outcome.killed else 'SURVIVED':<10}", style=STYLE["pass" if outcome.killed else "fail"])
    text.append(f"{outcome.id:<33} {outcome.gate or 'no gate yet':<11}{outcome.precision:<9} ", style="default")
    for mode, seen in outcome.comparisons.items():
        text.append(f"{mode} {_place(seen)}  ", style="default" if seen.placed else STYLE["fail"])
    text.append({True: "text changed", False: "text same", None: "text unknown"}[outcome.text_changed], style="default")
    if outcome.note:
        text.append(f"; {outcome.note}", style="default")
    console().print(text, soft_wrap=True)


def _place(seen: FaultComparison) -> str:
    """Where it showed; what was due instead, and who else is accused."""
    shown = f"{seen.first[0]} r{seen.first[1]}" if seen.first else seen.verdict
    if seen.inherited:
        shown += f" ({seen.inherited} behind inherit it)"
    if seen.placed:
        return shown
    due = f"{seen.due[0]}" + ("" if seen.due[1] is None else f" r{seen.due[1]}")
    accused = f", accuses {', '.join(seen.own[:3])}" + (" …" if len(seen.own) > 3 else "") if seen.own else ""
    return f"MISPLACED {shown}, due {due}{accused}"


def print_summary(outcomes: Sequence[FaultOutcome], left_open: Sequence[str] = ()) -> None:
    """The last line: how many were killed, how many that a comparison shows were placed, and what no gate kills yet."""
    killed = [outcome for outcome in outcomes if outcome.killed]
    shown = [outcome for outcome in outcomes if outcome.comparisons]
    placed = [outcome for outcome in shown if outcome.placed]
    whole = len(killed) == len(outcomes) and len(placed) == len(shown)
    words = (
        f"{len(killed)} of {len(outcomes)} faults killed, {len(placed)} of {len(shown)} placed in every comparison, "
    )
    words += f"text same in {sum(outcome.text_changed is False for outcome in outcomes)}"
    odd = [outcome.id for outcome in outcomes if not (outcome.killed and outcome.placed)]
    words += f"; look at {', '.join(odd[:8])}" + (" …" if len(odd) > 8 else "") if odd else ""
    words += f"; not run, no gate kills it yet: {', '.join(left_open)}" if left_open else ""
    console().print(Text(words, style=STYLE["pass" if whole else "fail"]), soft_wrap=True)
