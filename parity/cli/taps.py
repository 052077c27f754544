"""`parity taps`."""

from __future__ import annotations

from pathlib import Path

import click

from parity.cli.options import json_option, write_json
from parity.plain import echo


@click.command()
@click.argument("ids", type=int, nargs=-1)
@click.option(
    "--from",
    "convention",
    default="vllm",
    show_default=True,
    metavar="NAME",
    help="Whose numbering IDS are in; its default taps without IDS.",
)
@click.option("--layers", type=click.IntRange(min=5), required=True, help="L of the target.")
@json_option
def taps(ids: tuple[int, ...], convention: str, layers: int, json_file: Path | None) -> None:
    """Say the same tap layers in every numbering: vLLM, Hugging Face, NxDI, SGLang, Automodel, NKIPy."""
    from parity.errors import UsageError
    from parity.taps import CONVENTIONS, default, in_of, numbered

    found = in_of(convention, ids, layers) if ids else default(convention, layers)
    said: dict[str, list[int] | str] = {}
    for name in CONVENTIONS:
        try:
            said[name] = list(numbered(name, found, layers))
        except UsageError as error:
            said[name] = str(error)
    write_json(json_file, said)
    for name, numbers in said.items():
        echo(f"{name:<10} {numbers if isinstance(numbers, str) else ', '.join(map(str, numbers))}")
