"""`parity scan-log`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from parity.cli.options import json_option, write_json


@click.command("scan-log")
@click.argument("logs", nargs=-1, type=click.Path(path_type=Path, allow_dash=True), metavar="FILE...")
@click.option("--list", "listed", is_flag=True, help="The lines that are looked for, with reason and source.")
@json_option
def scan_log(logs: tuple[Path, ...], listed: bool, json_file: Path | None) -> None:
    """Find lines in compiler and run logs that say a kernel was replaced: "No feasible kernel", "falling back to".

    `-` is standard input. Exit code 1: found; 2: a file is unreadable; 3: a file is empty, which shows nothing.
    """
    from parity.errors import UsageError
    from parity.logs.scan import fallbacks, scan
    from parity.reports.logs import plain, plain_table, print_scan, print_table

    if listed:
        print_table(fallbacks())
        write_json(json_file, plain_table(fallbacks()))
        return
    if not logs:
        raise UsageError("parity scan-log: name a log, or - for standard input")
    found = scan([(str(log), sys.stdin.buffer if str(log) == "-" else log) for log in logs])
    print_scan(found)
    write_json(json_file, plain(found))
    sys.exit({"fail": 1, "inconclusive": 3}.get(found.verdict, 0))
