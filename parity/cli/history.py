"""`parity history`."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from parity.cli.options import STAGE_HELP, OutputFile, json_option, write_json
from parity.errors import UsageError
from parity.home import home
from parity.plain import echo

if TYPE_CHECKING:
    from pandas import DataFrame

HEADLINES = ("passed", "relative", "acceptance_length", "over_baseline")
"""What is shown of each cell where neither stage nor metric is asked for."""


def default_url(url: str | None) -> str:
    """Where history is: as given, or below `home()`."""
    return url or str(home() / "history")


url_argument = click.argument("url", required=False)


@click.command()
@url_argument
@click.option("--cell", metavar="GLOB", help="Only these cells.")
@click.option("--stage", metavar="GLOB", help=STAGE_HELP)
@click.option("--metric", metavar="GLOB", help="Only these figures: l2, worst_row, relative, over_baseline, ...")
@click.option("--mode", type=click.Choice(["local", "chained"]), help="Only figures of this comparison.")
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), help="Nights of this date or later.")
@click.option("--night", metavar="NAME|FOLDER", help="This night alone; with --changes, up to this night.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="The latest N nights.")
@click.option("--nights", "listing", is_flag=True, help="List the nights: commit, and cells by verdict.")
@click.option(
    "--changes",
    is_flag=True,
    help="What changed up to the latest night, against the run's own past. Exit 1 with a regression or drift, 3 where "
    "evidence is missing.",
)
@click.option(
    "--acknowledge",
    metavar="GLOB",
    help="Cells of such a name that are gone are meant to be: they are told so, and are no lack of evidence.",
)
@click.option("--because", metavar="WHY", help="With --acknowledge: the reason, in one line.")
@click.option(
    "--rows", "most", type=click.IntRange(min=1), default=60, show_default=True, help="Lines printed at the most."
)
@click.option(
    "--csv",
    "csv_file",
    type=OutputFile(),
    help="Write the chosen rows of the table as CSV to this file.",
)
@json_option
def history(
    url: str | None,
    cell: str | None,
    stage: str | None,
    metric: str | None,
    mode: str | None,
    since: datetime | None,
    night: str | None,
    last: int | None,
    listing: bool,
    changes: bool,
    acknowledge: str | None,
    because: str | None,
    most: int,
    csv_file: Path | None,
    json_file: Path | None,
) -> None:
    """Figures of the nights, with their trend. URL: a folder or fsspec URL; $PARITY_HOME/history by default."""
    from parity.history import WINDOW, known_night, load
    from parity.history.series import figures, records
    from parity.metrics.record import plain_numbers

    url = default_url(url)
    if (acknowledge is None) != (because is None):
        raise UsageError("--acknowledge GLOB and --because WHY go together")
    if acknowledge is not None and because is not None:
        _acknowledge(url, acknowledge, because)
        return
    night = known_night(url, night) if night else None
    if changes:
        narrowing = {"--stage": stage, "--metric": metric, "--mode": mode, "--since": since, "--csv": csv_file}
        if given := [name for name, value in (narrowing | {"--nights": listing or None}).items() if value is not None]:
            raise UsageError(f"--changes is told of whole cells: it takes no {' or '.join(given)}")
        frame = load(url, cell=cell, last=None if night else last or WINDOW, repeats=True)
        sys.exit(_changes(url, frame, night, json_file))
    day = since and since.date()
    frame = load(url, cell=cell, stage=stage, metric=metric, mode=mode, since=day, night=night, last=last)
    if csv_file:
        _write_csv(frame, csv_file)
    if listing:
        _list(frame, json_file)
        return
    shown = frame if stage or metric else frame[frame["metric"].isin(HEADLINES)]
    write_json(json_file, lambda: plain_numbers(records(frame)))
    from parity.reports.history import print_figures

    print_figures(figures(shown), most, narrowed=bool(stage or metric))


def _list(frame: DataFrame, json_file: Path | None) -> None:
    from parity.history import nights
    from parity.reports.history import print_nights

    found = list(nights(frame))
    print_nights(found)
    write_json(json_file, found)


def _acknowledge(url: str, cell: str, because: str) -> None:
    from parity.history import WINDOW, acknowledge, acknowledged, acknowledgements, load, verdicts

    frame = load(url, last=WINDOW, repeats=True)
    night = str(frame["night"].iloc[-1])
    changes = acknowledged(verdicts(frame, night), acknowledgements(url))
    for name in acknowledge(url, cell, because, night, changes):
        echo(f"acknowledged: {name}, gone up to night {night}: {because}")


def _changes(url: str, frame: DataFrame, night: str | None, json_file: Path | None) -> int:
    from dataclasses import asdict

    from parity.errors import Inconclusive
    from parity.history import acknowledged, acknowledgements, verdicts, waiting
    from parity.metrics.record import plain_numbers
    from parity.reports.history import print_changes

    if frame.empty:
        raise Inconclusive("history has no such night or cell")
    night = night or str(frame["night"].iloc[-1])
    found, few = acknowledged(verdicts(frame, night), acknowledgements(url)), waiting(frame, night)
    write_json(json_file, plain_numbers({"night": night, "changes": [asdict(one) for one in found], "waiting": few}))
    return print_changes(night, found, few)


def _write_csv(frame: DataFrame, path: Path) -> None:
    from parity.partial import partial_file

    try:
        with partial_file(path) as partial:
            frame.to_csv(partial, index=False)
    except OSError as error:
        raise UsageError(f"--csv {path} cannot be written ({error.strerror})") from None
