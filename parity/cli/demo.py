"""`parity demo`."""

from __future__ import annotations

import sys

import click

from parity.cli.common import json_option, progress, write_json


@click.command()
@click.option("-k", "k", type=int, default=4, show_default=True, help="K, draft tokens per round.")
@click.option("--max-new-tokens", type=int, default=48, show_default=True, help="Token budget of each prompt.")
@json_option
def demo(k, max_new_tokens, json_file) -> None:
    """The whole job on the tiny pair: golden, device both ways, one summary."""
    from parity.api import compare_dumps, run_device
    from parity.golden.trust import trusted
    from parity.producers import dump_golden
    from parity.reports.terminal import print_demo

    with progress("golden") as bar:
        golden = trusted(dump_golden(k=k, max_new_tokens=max_new_tokens, progress=bar))
    reports = []
    for mode in ("local", "chained"):
        with progress(f"numpy {mode}") as bar:
            run = run_device(golden, "numpy", mode, progress=bar)
        reports.append(compare_dumps(golden, run))
    write_json(json_file, {report.mode: report.to_dict() for report in reports})
    print_demo(golden, reports)
    sys.exit(max(report.exit_code for report in reports))
