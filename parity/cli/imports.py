"""`parity import` and `parity export`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from parity.cli.opening import golden_option, open_golden
from parity.cli.options import json_option, write_json
from parity.plain import echo

if TYPE_CHECKING:
    from parity.golden.choice import Wanted

FORMATS = ("sglang", "polygraphy", "msprobe", "nxdi", "aws", "hf", "files")
MOST = 20

anywhere = click.Path(path_type=Path)


@click.command("import")
@click.argument("paths", type=anywhere, nargs=-1, required=True, metavar="PATH...")
@click.option("--from", "source", type=click.Choice(FORMATS), required=True, help="The format: whose tool wrote PATH.")
@golden_option
@click.option(
    "--map",
    "names",
    metavar="FILE|NAME",
    help="Rows from the tool's names to stages; without one its names must be stages.",
)
@click.option(
    "--reference",
    default="",
    metavar="NAME==VERSION",
    help="The dump is this independent implementation's: write a golden to compare with another one; it judges no "
    "device.",
)
@click.option(
    "--suggest-map",
    "suggested",
    type=anywhere,
    metavar="FILE",
    help="Write no run but a map, from what the tensors hold: each is compared with every stage of the golden; what is "
    "like several is said, never chosen.",
)
@click.option(
    "--partial", is_flag=True, help="The dump is of some stages: compare what is there, and say which are missing."
)
@click.option("--out", type=anywhere, metavar="RUN", help="Folder to write.")
@json_option
def import_dump(
    paths: tuple[Path, ...],
    source: str,
    golden: Wanted,
    names: str | None,
    reference: str,
    suggested: Path | None,
    partial: bool,
    out: Path | None,
    json_file: Path | None,
) -> None:
    """Make a run folder of another tool's dump, to be compared with a golden: `parity diff RUN --golden G`.

    With --suggest-map, exit code 3: no tensor is paired, or one is left to choose.
    """
    from parity.api import import_dump as import_run
    from parity.api import read_dump
    from parity.errors import UsageError
    from parity.reports.dumps import print_dump

    if suggested and not (out or names or reference or partial):
        sys.exit(_suggest(paths, source, golden, suggested, json_file))
    if suggested or not out:
        raise UsageError("--out RUN writes a run (by --map), --suggest-map FILE a map: name one of the two")
    placing = import_run(paths, source, open_golden(golden), out, names, reference, partial)
    data = print_dump(read_dump(out))
    list_names("is ignored by the map", [f"{name} ({why})" for name, why in placing.ignored.items()])
    list_names("is not mapped", placing.unmapped)
    write_json(json_file, data | {"unmapped": placing.unmapped, "ignored": placing.ignored})


def _suggest(paths: tuple[Path, ...], source: str, golden: Wanted, file: Path, json_file: Path | None) -> int:
    """Write the map and say what it leaves open; the exit code."""
    from parity.imports.suggesting import suggest_map
    from parity.imports.torch_file import torch_load

    found = suggest_map(source, paths, open_golden(golden), torch_load)
    write_map(file, found.text())
    counts = f"{len(found.paired)} names are paired, {len(found.unsure)} are for you to choose"
    echo(f"{file}: {counts}, {len(found.unlike)} are no stage")
    list_names("is unsure", [f"{name}: {said}," for name, said in found.unsure.items()])
    list_names("is not paired", [f"{name} ({why})" for name, why in found.unlike.items()])
    write_json(json_file, {"paired": found.paired, "unsure": found.unsure, "unlike": found.unlike})
    return 3 if found.unsure or not found.paired else 0


def write_map(file: Path, text: str) -> None:
    """Write a suggested map.

    Raises:
        UsageError: the file exists already.
    """
    from parity.errors import UsageError
    from parity.partial import partial_file

    try:
        with partial_file(file, fresh=True) as partial:
            partial.write_text(text, encoding="utf-8")
    except FileExistsError:
        raise UsageError(f"{file} exists already; choose another name or remove it") from None


def list_names(what: str, names: Sequence[str], most: int = MOST) -> None:
    """Say which tensors did not go in."""
    for name, count in list(Counter(names).items())[:most]:
        echo(f"  {name} {what}" + (f" ({count} times)" if count > 1 else ""))
    if (more := len(set(names)) - most) > 0:
        echo(f"  … and {more} more (--json lists them all)")


@click.command("export")
@click.argument("directory", type=anywhere, metavar="DUMP")
@click.argument("out", type=anywhere, metavar="OUT")
@click.option(
    "--to", "target", type=click.Choice(["npz"]), default="npz", show_default=True, help="The format to write."
)
def export_dump(directory: Path, out: Path, target: str) -> None:
    """Write a golden or a run as one file of plain arrays."""
    from parity.api import export_dump as export
    from parity.api import read_dump

    echo(f"{export(read_dump(directory), out)} tensors in {out}")
