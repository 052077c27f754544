"""`parity nightly`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from parity.bundled import tiny
from parity.cli.options import json_option, write_json
from parity.errors import UsageError
from parity.home import home
from parity.remote import INSTALL

if TYPE_CHECKING:
    from parity.nightly.engines import LocalEngine
    from parity.nightly.folder import NightFolder
    from parity.nightly.kept import KeptNight
    from parity.nightly.matrix import RunSettings
    from parity.nightly.records import Cell, CellResult
    from parity.nightly.run import JobEngine, Remeasure


@click.command()
@click.argument("matrix", type=click.Path(path_type=Path), required=False, metavar="[MATRIX]")
@click.option(
    "--out",
    metavar="NIGHT",
    help="Folder of the night, or an fsspec URL where it is kept as well; one that was interrupted continues with its "
    "missing cells. A new one under .parity/nights by default.",
)
@click.option("--only", multiple=True, metavar="GLOB", help="Only cells with such a name; may be repeated.")
@click.option("--dry-run", is_flag=True, help="List the cells, say which cannot be conclusive and why, and end.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Cells at a time on this machine; as many as the matrix says, or cores.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where cells run: this machine, or a Ray cluster that is there.",
)
@click.option(
    "--ray-address",
    default="",
    metavar="HOST:PORT",
    help="The Ray cluster; $RAY_ADDRESS or the one of this machine by default.",
)
@click.option(
    "--goldens",
    default="",
    metavar="URL",
    help="Keep made goldens at this fsspec URL, too: other machines fetch them there.",
)
@click.option(
    "--history", metavar="URL", help="History that the night is appended to; $PARITY_HOME/history by default."
)
@click.option(
    "--no-history",
    is_flag=True,
    help="Keep the night out of any history: no trend, and nothing to say of what changed.",
)
@click.option("--github", is_flag=True, help="Print annotations; so under GitHub Actions in any case.")
@json_option
def nightly(
    matrix: Path | None,
    out: str | None,
    only: tuple[str, ...],
    dry_run: bool,
    workers: int | None,
    engine: str,
    ray_address: str,
    goldens: str,
    history: str | None,
    no_history: bool,
    github: bool,
    json_file: Path | None,
) -> None:
    """Judge every cell of a MATRIX (cases x devices x families x K x TP x policies); 13 cells on the tiny pair by
    default.

    Every cell runs in a process of its own. Exit code 1: a cell failed; 3: none failed, but one is broken or
    inconclusive. The matrix file: docs/nightly.md.
    """
    from parity.nightly.expand import cells, chosen
    from parity.nightly.matrix import read_matrix
    from parity.reports.nightly import print_plan

    if engine == "ray" and workers:
        raise UsageError("--workers goes with --engine local: a Ray cluster knows its CPUs")
    if ray_address and engine != "ray":
        raise UsageError("--ray-address goes with --engine ray")
    if history and no_history:
        raise UsageError("--history and --no-history do not go together")
    plan = read_matrix(matrix or tiny("nightly.toml"))
    planned = cells(plan)
    wanted = chosen(planned, only)
    if dry_run:
        from parity.nightly.foresight import obstacles

        cannot = obstacles(wanted)
        listed = [cell.model_dump(mode="json") | {"cannot": cannot.get(cell.name, ())} for cell in wanted]
        print_plan(wanted, cannot)
        write_json(json_file, listed)
        sys.exit(3 if cannot else 0)
    _installed()
    from parity.cli.night_end import end, interruptible
    from parity.nightly.kept import kept_night
    from parity.nightly.run import begin
    from parity.reproducing import command_line

    url = "" if no_history else history or str(home() / "history")
    with _engines(plan.run, workers, engine, ray_address) as engines:
        left_out = tuple(cell.name for cell in planned if cell not in wanted)
        kept = kept_night(out or "", home() / "nights")
        folder = begin(kept.path if kept else Path(out) if out else None, home(), plan, wanted, engine, left_out)
        if kept:
            kept.begin(folder)
        wanted = tuple(cell for cell in chosen(folder.night.cells, only) if cell.name in folder.missing())
        again = command_line("nightly", *([matrix] if matrix else []), out=kept.url if kept else folder.path)
        with interruptible(folder, again):
            _run(folder, wanted, engines, goldens, _suspicion(url, folder, plan.run.again), kept)
    sys.exit(end(folder, url, github, json_file, kept))


def _suspicion(url: str, folder: NightFolder, most: int) -> Remeasure:
    """Which cells are measured again: never without a history, which is what a figure looks changed against."""
    if not url or not most:
        return lambda found: False
    from parity.history import Suspicion

    return Suspicion(url, folder.night, most)


def _installed() -> None:
    """What the end of the night needs is missed at its beginning."""
    from importlib.util import find_spec

    for needed in ("junitparser", "jinja2", "pandas", "pyarrow", "fsspec", "scipy"):
        if find_spec(needed) is None:
            raise UsageError(f"parity nightly needs {needed}: {INSTALL}")


@contextmanager
def _engines(
    run: RunSettings, workers: int | None, engine: str, ray_address: str
) -> Iterator[tuple[LocalEngine, JobEngine]]:
    """What makes goldens here, and what runs the cells; a cluster that is not there is missed at once."""
    from parity.nightly.engines import LocalEngine

    here = LocalEngine(workers or run.workers or len(os.sched_getaffinity(0)), run.cell_timeout, run.retries)
    there: JobEngine = here
    if engine == "ray":
        from parity.nightly.engines import RayEngine

        there = RayEngine(ray_address, run.cell_timeout, run.retries)
    try:
        yield here, there
    finally:
        there.stop()
        here.stop()


def _run(
    folder: NightFolder,
    wanted: tuple[Cell, ...],
    engines: tuple[LocalEngine, JobEngine],
    goldens: str,
    again: Remeasure,
    kept: KeptNight | None,
) -> None:
    """The missing cells."""
    from parity.cli.night_end import tried
    from parity.nightly.run import NightRun
    from parity.reports.nightly import print_cell

    ended, planned = [len(folder.night.cells) - len(folder.missing())], len(folder.night.cells)
    answering = [kept] if kept else []

    def told(result: CellResult) -> None:
        ended[0] += not result.repeat
        if answering and not tried("results are kept at the end", lambda: answering[0].keep(folder, result)):
            answering.clear()
        print_cell(result, ended[0], planned)

    NightRun(folder, *engines, goldens, told, again).run(wanted)
