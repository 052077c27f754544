"""`parity policy`."""

from __future__ import annotations

from pathlib import Path

import click

from parity.cli.options import json_option, write_json
from parity.plain import echo


@click.command()
@click.argument("name", required=False, metavar="[NAME|FILE]")
@click.option("--list", "names", is_flag=True, help="Name the shipped policies, and what each cannot see.")
@json_option
def policy(name: str | None, names: bool, json_file: Path | None) -> None:
    """Print a policy as the TOML it is: the default one, a preset, or a file, checked.

    `parity policy > mine.toml` is where an own policy starts; `parity diff --policy mine.toml` uses it.
    """
    from parity.policy import read_policy, shipped, source_of

    if names:
        found = {name: read_policy(name, name).blind for name in shipped()}
        write_json(json_file, found)
        for preset, blind in found.items():
            echo(f"{preset:<15}cannot see {blind}")
        return
    write_json(json_file, read_policy(name, "bfloat16").model_dump(mode="json"))
    echo(source_of(name, "bfloat16").read_text(), nl=False)
