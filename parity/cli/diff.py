"""`parity diff`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from parity.cli.common import (
    device_option,
    golden_option,
    json_option,
    mode_option,
    open_golden,
    precision_option,
    stage_option,
    write_json,
)
from parity.cli.run import make_run


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False, metavar="[RUN]")
@golden_option
@device_option
@stage_option
@mode_option
@precision_option
@click.option("--policy", type=click.Path(path_type=Path), metavar="FILE", help="Bounds; the shipped policy of the run's precision by default.")
@click.option("--strict", is_flag=True, help="A warning is a failure.")
@json_option
def diff(run, golden, device_name, stages, mode, precision, policy, strict, json_file) -> None:
    """Hold a device against a golden, stage by stage: RUN, or a run of --device made now."""
    from parity.golden.store import Dump
    from reports.terminal import print_report

    golden = open_golden(golden)
    made = Dump(run) if run else make_run(golden, device_name, mode, precision, stages)
    report = compare_dumps(golden, made, stages, policy, strict)
    write_json(json_file, report.to_dict())
    print_report(report)
    sys.exit(report.exit_code)


def compare_dumps(golden, run, stages=(), policy=None, strict=False):
    """Judge an opened run against an opened golden."""
    from parity.compare import compare
    from parity.policy import read_policy

    return compare(golden, run, read_policy(policy, run.manifest.case.precision), stages, strict)
