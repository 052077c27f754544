"""`parity diff`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from parity.cli.common import (
    agree,
    device_option,
    golden_option,
    isolation_options,
    json_option,
    limits,
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
@click.option(
    "--against",
    metavar="DEVICE|RUN",
    help="Another device, or its run: judge what parts the two, in x noise of the golden.",
)
@click.option(
    "--policy",
    metavar="FILE|NAME",
    help="Bounds: a file, or a shipped policy (`parity policy --list`); the one of the run's precision by default.",
)
@click.option(
    "--per",
    type=click.Choice(["position", "head", "expert"]),
    help="Break the shown stages down by position, head or expert.",
)
@click.option(
    "--worst", type=click.IntRange(min=1), default=5, show_default=True, help="With --per: how many lines a stage."
)
@click.option("--strict", is_flag=True, help="A warning is a failure.")
@isolation_options(default=False)
@json_option
def diff(
    run, golden, device_name, stages, mode, precision, against, policy, per, worst, strict, json_file, **isolation
) -> None:
    """Hold a device against a golden, stage by stage: RUN, or a run of --device made now.

    With --against, hold it against another device on the golden's tokens: "numerically equivalent" as a verdict.
    """
    from parity.cli.wiring import Rerun, judging
    from parity.golden.store import Dump
    from parity.reports.terminal import print_report

    golden = open_golden(golden)
    bounds = limits(**isolation)
    if run:
        judging(golden)
        agree(made := Dump(run), device_name=device_name, mode=mode, precision=precision)
    else:
        made = make_run(golden, device_name, mode, precision, stages, limits=bounds)
    if against:
        made = difference(golden, made, against, stages, bounds)
    rerun = Rerun()
    report = compare_dumps(golden, made, stages, policy, strict, rerun)
    slices = break_down(golden, made, report, per, worst, rerun) if per else {}
    write_json(json_file, lambda: report.to_dict() | {"per": per, "slices": _plain(slices)})
    print_report(report, per, slices)
    sys.exit(report.exit_code)


def difference(golden, run, against, stages=(), limits=None):
    """The run as it differs from another one: a run folder, or one of this device made now."""
    from parity.compare.between import Difference
    from parity.golden.store import Dump

    case = run.manifest.case
    is_run = (Path(against) / "manifest.json").is_file()
    other = (
        Dump(Path(against)) if is_run else make_run(golden, against, case.mode, case.precision, stages, limits=limits)
    )
    return Difference(golden, run, other)


def _plain(slices):
    """Slices as plain data."""
    return {name: [asdict(one) | {"x": one.x} for one in found] for name, found in slices.items()}


def break_down(golden, run, report, per, worst, rerun=None):
    """The worst slices of the stages that are no pass, or of all selected ones where all pass."""
    from parity.compare.basis import basis
    from parity.compare.breakdown import breakdown

    golden = basis(golden, run, golden.manifest.stages, rerun).golden
    numbers = [stage for stage in report.stages if stage.x]
    wrong = [stage for stage in numbers if stage.verdict != "pass" and "inherited" not in stage.marks]
    return breakdown(golden, run, [stage.stage for stage in wrong or numbers], per, worst)


def compare_dumps(golden, run, stages=(), policy=None, strict=False, rerun=None):
    """Judge an opened run against an opened golden; `rerun` as for `parity.compare.compare`."""
    from parity.compare import compare
    from parity.compare.between import Difference, compare_devices
    from parity.policy import read_policy

    bounds = read_policy(policy, run.manifest.case.precision)
    if isinstance(run, Difference):
        return compare_devices(golden, run, bounds, stages, strict)
    return compare(golden, run, bounds, stages, strict, rerun)
