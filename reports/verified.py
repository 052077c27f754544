"""A golden and its second dump, in a line or two."""

from __future__ import annotations

from rich.text import Text

from parity.golden.verify import Verified
from parity.reports.dumps import console
from parity.reports.terminal import STYLE


def print_verified(found: Verified) -> None:
    """All alike in one line; else the first tensor that differs, and what else changed since."""
    out, verdict = console(), "fail" if found.exit_code else "pass"
    notes = [f"{what} changed" for what in (*found.sources, *found.versions)] + list(found.unknown)
    text = Text(f"golden verdict: {verdict}", style=STYLE[verdict])
    if not found.exit_code:
        text.append(f"; {found.golden}: {found.tensors} tensors alike, byte for byte", style="default")
    else:
        parts = [f"{found.differing} of {found.tensors} tensors differ"] if found.differing else []
        parts += [f"first {found.first}"] if found.first else []
        parts += [f"{what} differs" for what in found.case]
        text.append("; " + "; ".join([found.golden, *parts]), style="default")
        text.append(f"; reproduce: parity verify-golden {found.golden}", style="default")
    for note in notes:
        out.print(f"since the dump: {note}", soft_wrap=True)
    out.print(text, soft_wrap=True)
