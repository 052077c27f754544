"""`parity reduce`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.cli.opening import golden_option, open_judging
from parity.cli.options import (
    device_option,
    isolation_options,
    json_option,
    limits,
    precision_option,
    write_json,
)
from parity.plain import echo

if TYPE_CHECKING:
    from parity.golden.choice import Wanted


@click.command()
@golden_option
@device_option
@precision_option
@click.option("--policy", metavar="FILE|NAME", help="Bounds; the default policy of the precision where not given.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of the references.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Golden to write; a new one under .parity/goldens by default.",
)
@isolation_options(default=False)
@json_option
def reduce(
    golden: Wanted,
    device_name: str,
    precision: str,
    policy: str | None,
    threads: int,
    out: Path | None,
    json_file: Path | None,
    **isolation: Any,
) -> None:
    """Cut a failing case to the shortest prompt, fewest rounds and smallest K that still fail at the same stage.

    Writes the case as a golden of its own and prints the command that reproduces the failure. Exit code 0: the
    device fails nowhere; 1: a reduced case was written.
    """
    from parity.api import reduce_failure
    from parity.reproducing import Argument, command_line

    held = limits(**isolation)
    reduced = reduce_failure(
        open_judging(golden),
        device_name,
        precision,
        policy=policy,
        threads=threads,
        out=out,
        told=lambda line: echo(line, err=True),
        limits=held,
    )
    if reduced is None:
        echo("nothing to reduce: the device passes every stage, local and chained")
        write_json(json_file, {})
        return
    case, made, mode = reduced
    asked: dict[str, Argument | None] = {"precision": precision, "mode": mode, "policy": policy}
    command = command_line("diff", golden=made.folder, device=device_name, **asked)
    write_json(json_file, asdict(case) | {"golden": str(made.folder), "mode": mode, "reproduce": command})
    echo(
        f"{len(case.ids)} prompt tokens, K = {','.join(map(str, case.ks))}, {case.round} rounds: fails at {case.first}"
    )
    echo(f"reproduce: {command}")
    sys.exit(1)
