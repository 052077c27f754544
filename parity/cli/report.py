"""`parity report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from parity.cli.opening import golden_option, open_judging
from parity.cli.options import json_option, write_json
from parity.cli.progress_bar import progress
from parity.home import home
from parity.plain import echo

if TYPE_CHECKING:
    from parity.golden.choice import Wanted


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@golden_option
@click.option("--policy", metavar="FILE|NAME", help="Bounds of a run folder; those of its precision by default.")
@click.option(
    "--history",
    "url",
    metavar="URL",
    help="History to read changes and trends from; $PARITY_HOME/history where there is one.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="The HTML file; report.html in RUN by default."
)
@click.option("--markdown", is_flag=True, help="Print the short form for pull requests; the HTML file only with --out.")
@json_option
def report(
    run: Path,
    golden: Wanted,
    policy: str | None,
    url: str | None,
    out: Path | None,
    markdown: bool,
    json_file: Path | None,
) -> None:
    """One HTML file that tells a night: RUN is the folder of a night, or of a run with its --golden.

    Exit code 0 when the report was made, whatever it says: verdicts end `parity nightly`, `parity diff` and
    `parity gate`.
    """
    from parity.nightly.folder import NIGHT
    from parity.reports.nightly import night_data, print_view
    from parity.reports.page.markdown import markdown as short
    from parity.reports.page.night import night_view, refuse_other, run_view
    from parity.reports.page.render import write

    if (run / NIGHT).is_file():
        view = night_view(run, url or _kept())
    else:
        refuse_other(run)
        with progress("the reference with the run's experts") as bar:
            view = run_view(run, open_judging(golden, sampled=True), policy, bar)
    write_json(json_file, lambda: night_data(view))
    if out or not markdown:
        write(view, out or run / "report.html")
    if markdown:
        echo(short(view), nl=False)
    else:
        print_view(view, out or run / "report.html")


def _kept() -> str | None:
    """The history of this home, where there is one."""
    return str(home() / "history") if (home() / "history").is_dir() else None
