"""`parity verify-golden`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from parity.cli.opening import open_golden, with_checkpoints
from parity.cli.options import json_option, write_json
from parity.cli.progress_bar import progress

if TYPE_CHECKING:
    from parity.golden.choice import Wanted


@click.command("verify-golden")
@click.argument("golden", type=click.Path(path_type=Path), required=False, metavar="[GOLDEN]")
@with_checkpoints
@json_option
def verify_golden(golden: Wanted, json_file: Path | None) -> None:
    """Dump the case of a GOLDEN (the newest one by default) once more and compare every tensor's bytes.

    Prompts, K, budget, stages, roundings and threads are the golden's own. Exit code 0: all alike; 1: something is
    not; 2: a checkpoint changed, or the golden's files are damaged.
    """
    from parity.api import verify_golden as verify
    from parity.reports.dumps import print_verified

    opened = open_golden(golden)
    with progress("golden") as bar:
        verified = verify(opened, bar)
    print_verified(verified)
    write_json(json_file, verified.to_dict())
    sys.exit(verified.exit_code)
