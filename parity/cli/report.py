"""`parity report`."""

from __future__ import annotations

from pathlib import Path

import click

from parity.cli.common import golden_option, home, json_option, open_golden, write_json
from parity.plain import echo


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
def report(run, golden, policy, url, out, markdown, json_file) -> None:
    """One HTML file that tells a night: RUN is the folder of a night, or of a run with its --golden.

    Exit code 0 when the report was made, whatever it says: verdicts end `parity nightly`, `parity diff` and `parity gate`.
    """
    from parity.nightly.folder import NIGHT
    from parity.reports.page.markdown import markdown as short
    from parity.reports.page.render import write
    from parity.reports.page.terminal import print_told, told

    is_night = (run / NIGHT).is_file()
    view = night_view(run, url or _kept()) if is_night else _run_view(run, golden, policy)
    write_json(json_file, lambda: told(view))
    if out or not markdown:
        write(view, out or run / "report.html")
    if markdown:
        echo(short(view), nl=False)
    else:
        print_told(view, out or run / "report.html")


def night_view(path: Path, url: str | None):
    """What a night's folder tells, with what the history at this URL adds."""
    from parity.nightly.folder import NightFolder
    from parity.reports.page.night import tell
    from parity.reports.page.past import read_past

    folder = NightFolder(path)
    night, results = folder.night, folder.worst()
    past = read_past(url, night.name, [cell.name for cell in night.cells]) if url else None
    return tell(
        night,
        results,
        past,
        {one.cell.name: folder.log_tail(one.cell.name, one.repeat) for one in results if one.error},
    )


def _run_view(path: Path, golden: Path | None, policy: str | None):
    from parity.cli.wiring import Rerun, judging
    from parity.errors import UsageError
    from parity.golden.store import Dump
    from parity.nightly.single import night_of
    from parity.reports.page.night import tell

    if not (path / "manifest.json").is_file():
        raise UsageError(f"{path} is neither the folder of a night (night.json) nor of a run (manifest.json)")
    opened, run = open_golden(golden), Dump(path)
    if run.manifest.kind != "run":
        raise UsageError(f"{path} is a golden; a report tells what a device's run or a night found")
    judging(opened)
    night, result = night_of(opened, run, policy, Rerun())
    return tell(night, [result])


def _kept() -> str | None:
    """The history of this home, where there is one."""
    return str(home() / "history") if (home() / "history").is_dir() else None
