"""`parity curve`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from parity.cli.options import bound_option, json_option, write_json


@click.command()
@click.argument("dumps", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DUMP...")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write them as a curve.")
@click.option(
    "--against", type=click.Path(path_type=Path), metavar="FILE", help="Compare them with this curve, K by K."
)
@click.option("--model", metavar="NAME", help="The model's name in the file; with --against the only one by default.")
@click.option("--mode", metavar="NAME", default="thinking_off", show_default=True, help="The mode in the file.")
@bound_option
@json_option
def curve(
    dumps: tuple[Path, ...],
    out: Path | None,
    against: Path | None,
    model: str | None,
    mode: str,
    bound: float,
    json_file: Path | None,
) -> None:
    """Acceptance of goldens or runs, one for each K, as a curve: printed, written, or compared with one.

    Curves are YAML files as in InferenceX's golden_al_distribution; limits and rates by place are beside the mean.
    """
    from dataclasses import asdict

    from parity.api import read_dump
    from parity.curves import compare_curve, points, write_curve
    from parity.errors import UsageError
    from parity.reports.curves import print_compared, print_points

    if out and against:
        raise UsageError("--out writes a curve, --against reads one: leave one of the two out")
    if out and not model:
        raise UsageError("--out: a curve has its model's name: --model")
    opened = [read_dump(dump) for dump in dumps]
    if against:
        report = compare_curve(opened, against, mode, model, bound)
        print_compared(report)
        write_json(json_file, report.to_dict())
        sys.exit(report.exit_code)
    found = write_curve(opened, out, str(model), mode) if out else points(opened)
    print_points(found.values())
    write_json(json_file, {k: asdict(one) for k, one in found.items()})
