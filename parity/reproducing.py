"""The one place that makes command lines for a reader to copy: every argument quoted for a shell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

Argument = str | int | Path
"""What a command takes, as it is named without quotes."""


def command_line(verb: str, *arguments: Argument, **options: Argument | Sequence[Argument] | None) -> str:
    """`parity VERB ARGUMENTS --OPTION VALUE`, in the order given.

    Args:
        arguments: in front of the options.
        options: their names with underscores, one letter for `-k`; left out where empty or None, repeated for several.
    """
    words: list[Argument] = [verb, *arguments]
    for name, value in options.items():
        for one in [value] if isinstance(value, str | int | Path) else value or ():
            if str(one):
                words += [f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}", one]
    return quoted("parity", *words)


def quoted(*words: Argument) -> str:
    """Words of a command, as a shell takes them apart again."""
    return " ".join(quote(str(word)) for word in words)
