"""`parity demo`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from parity.cli.options import json_option, write_json
from parity.cli.progress_bar import progress

if TYPE_CHECKING:
    from parity.golden.fields import Mode


@click.command()
@click.option("-k", "k", type=int, default=4, show_default=True, help="K, draft tokens per round.")
@click.option("--max-new-tokens", type=int, default=48, show_default=True, help="Token budget of each prompt.")
@click.option("--all", "whole", is_flag=True, help="Print every stage family, and what each verdict cannot see.")
@json_option
def demo(k: int, max_new_tokens: int, whole: bool, json_file: Path | None) -> None:
    """The whole job on the tiny pair: golden, device both ways, one summary.

    Takes about two minutes on one core.
    """
    from parity.api import compare_dumps, run_device
    from parity.golden.trust import trusted
    from parity.producers import dump_golden
    from parity.reports.terminal import print_demo

    with progress("golden") as bar:
        golden = trusted(dump_golden(k=k, max_new_tokens=max_new_tokens, progress=bar))
    modes: tuple[Mode, ...] = ("local", "chained")
    reports = []
    for mode in modes:
        with progress(f"numpy {mode}") as bar:
            run = run_device(golden, "numpy", mode, progress=bar)
        reports.append(compare_dumps(golden, run))
    print_demo(golden, reports, whole)
    write_json(json_file, {report.mode: report.to_dict() for report in reports})
    sys.exit(max(report.exit_code for report in reports))
