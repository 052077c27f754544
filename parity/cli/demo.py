"""`parity demo`."""

from __future__ import annotations

import sys

import click

from parity.cli.common import json_option, write_json
from parity.cli.diff import compare_dumps
from parity.cli.golden import make_golden
from parity.cli.run import make_run


@click.command()
@click.option("-k", "k", type=int, default=4, show_default=True, help="K, draft tokens per round.")
@click.option("--max-new-tokens", type=int, default=48, show_default=True, help="Token budget of each prompt.")
@json_option
def demo(k, max_new_tokens, json_file) -> None:
    """The whole job on the tiny pair: golden, device both ways, one summary."""
    from parity.reports.terminal import print_demo

    golden = make_golden(None, None, None, k, max_new_tokens)
    reports = [compare_dumps(golden, make_run(golden, "numpy", mode)) for mode in ("local", "chained")]
    write_json(json_file, {report.mode: report.to_dict() for report in reports})
    print_demo(golden, reports)
    sys.exit(max(report.exit_code for report in reports))
