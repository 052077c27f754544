"""`parity corroborate`."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path

import click

from parity.cli.options import json_option, write_json


@click.command()
@click.argument("golden", type=click.Path(path_type=Path))
@click.argument("witnesses", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="GOLDEN...")
@click.option(
    "--policy",
    metavar="FILE|NAME",
    help="Bounds of an agreement in float32; the shipped policy of that name by default.",
)
@json_option
def corroborate(golden: Path, witnesses: tuple[Path, ...], policy: str | None, json_file: Path | None) -> None:
    """Hold references against each other, stage by stage, and mark the first GOLDEN with what the others say.

    Exit code 0: stages are corroborated and none is disputed; 1: references disagree; 3: nothing could be
    confirmed, or a stage that two of them have could not be compared.
    """
    from parity.corroborate import corroborations, triangulate
    from parity.golden.choice import Wanted, choose
    from parity.golden.trust import refuse_stale
    from parity.policy import read_policy
    from parity.progress import note
    from parity.reports.corroboration import print_triangulation

    goldens = [choose(Wanted(folder), folder)[0] for folder in (golden, *witnesses)]
    for sentence in chain.from_iterable(map(refuse_stale, goldens)):
        note(sentence)
    found = triangulate(goldens, read_policy(policy, "float32"))
    manifest = goldens[0].manifest.model_copy(update={"corroborations": corroborations(found, goldens)})
    manifest.replace(golden)
    print_triangulation(found)
    write_json(json_file, found.to_dict)
    sys.exit(found.exit_code)
