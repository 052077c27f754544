"""`parity diff`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.cli.opening import agree, foretell, golden_option, open_both, partial_option
from parity.cli.options import (
    device_option,
    isolation_options,
    json_option,
    layers_option,
    limits,
    mode_option,
    precision_option,
    stage_option,
    write_json,
)
from parity.cli.progress_bar import progress
from parity.cli.tensors import OWN, diff_pair, pair_options, refuse_mixed

if TYPE_CHECKING:
    from parity.compare.breakdown import Slice
    from parity.golden.choice import Wanted
    from parity.golden.fields import Mode
    from parity.golden.views import DumpView


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False, metavar="[RUN | A B]")
@click.argument("other", type=click.Path(path_type=Path), required=False, metavar="")
@golden_option
@device_option
@stage_option
@mode_option
@precision_option
@layers_option
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
@partial_option
@click.option(
    "--without",
    default="",
    metavar="NAME,…",
    help="Leave these bounds out where sketches or best logits say nothing of them, as in worst_column,largest "
    "(docs/smaller-goldens.md); such a stage is inconclusive otherwise.",
)
@click.option("--all", "whole", is_flag=True, help="Print every stage family, those that pass as well.")
@click.option("--strict", is_flag=True, help="A warning is a failure.")
@isolation_options(default=False)
@pair_options
@json_option
def diff(
    run: Path | None,
    other: Path | None,
    golden: Wanted,
    device_name: str,
    stages: tuple[str, ...],
    mode: Mode,
    precision: str,
    layers: str,
    against: str | None,
    policy: str | None,
    per: str | None,
    worst: int,
    partial: bool,
    whole: bool,
    strict: bool,
    without: str,
    json_file: Path | None,
    **rest: Any,
) -> None:
    """Compare a device with a golden, stage by stage: RUN, or a run of --device made now.

    Prints the stage families that do not pass and a verdict: what, where, since when, whose, and the next command.
    With --against, compare it with another device on the golden's tokens: "numerically equivalent" as a verdict.

    A B: compare what was computed with what should have been, without golden or pipeline: two .npy, .npz, .safetensors
    or .pt files, folders of them, or checkpoints, tensor by tensor by relative error.
    """
    from parity.api import compare_dumps, device_difference, run_device, worst_slices
    from parity.oracles import ReferenceRerun
    from parity.reports.terminal import print_report

    refuse_mixed(two=other is not None)
    pair = {name: rest.pop(name) for name in OWN}
    if run and other:
        sys.exit(diff_pair(run, other, json_file, pair))
    opened, made = open_both(golden, run, partial, sampled=True, smaller=True)
    left_out = tuple(filter(None, without.split(",")))
    held = limits(**rest)
    if made:
        agree(made, device_name=device_name, mode=mode, precision=precision, layers=layers)
    else:
        foretell("diff", opened, device_name)
        with progress(f"{device_name} {mode}") as bar:
            made = run_device(opened, device_name, mode, precision, stages, layers=layers, limits=held, progress=bar)
    compared: DumpView = made
    if against:
        with progress(f"{against} {made.manifest.case.mode}") as bar:
            compared = device_difference(opened, made, against, stages, held, bar)
    with progress("the reference with the run's experts") as bar:
        rerun = ReferenceRerun(bar)
        report = compare_dumps(opened, compared, stages, policy, strict, rerun, left_out)
        slices = worst_slices(opened, compared, report, per, worst, rerun) if per else {}
    print_report(report, per, slices, whole)
    write_json(json_file, lambda: report.to_dict() | {"per": per, "slices": _plain(slices)})
    sys.exit(report.exit_code)


def _plain(slices: Mapping[str, Sequence[Slice]]) -> dict[str, list[dict[str, Any]]]:
    """Slices as plain data."""
    return {name: [asdict(one) | {"x": one.x} for one in worst] for name, worst in slices.items()}
