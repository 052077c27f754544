"""docs/commands.md: the help of every command. `python -m tests.meta.commands > docs/commands.md` prints it anew."""

from __future__ import annotations

from collections.abc import Iterator

import click

from parity.cli import cli
from parity.cli.verbs import GROUPS

WIDTH = 100


def page() -> str:
    """Every command in the groups of `parity --help`."""
    parts = [
        "# Commands\n\nWhat `parity COMMAND --help` says, by `python -m tests.meta.commands > docs/commands.md`.\n"
    ]
    for title, members in GROUPS.items():
        parts.append(f"\n## {title}\n")
        for verb in members:
            parts.append(f"\n### parity {verb.name}\n\n{verb.about[0].upper()}{verb.about[1:]}.\n")
            parts += (f"\n```text\n{text}\n```\n" for text in _helps(cli.commands[verb.name], f"parity {verb.name}"))
    return "".join(parts)


def _helps(verb: click.Command, path: str) -> Iterator[str]:
    """The help of a command, and of those below it."""
    context = click.Context(
        verb, info_name=path, max_content_width=WIDTH, terminal_width=WIDTH, help_option_names=["-h", "--help"]
    )
    yield verb.get_help(context)
    for name, below in getattr(verb, "commands", {}).items():
        yield from _helps(below, f"{path} {name}")


if __name__ == "__main__":
    print(page(), end="")
