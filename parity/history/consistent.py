"""Files of history, each against itself: what a night cannot have written was written by somebody else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, get_args

from parity.compare.report import FAIL, PASS, RANK, WARN
from parity.errors import UsageError
from parity.history.series import HALF_WIDTHS
from parity.nightly.records import CellVerdict

if TYPE_CHECKING:
    import pandas as pd

    from parity.history.store import HistoryFile

GOOD = (PASS, WARN)
FILE = "file"
FIGURE = ["cell", "repeat", "stage", "mode", "metric"]
OF_A_NIGHT = ["night", "started", "recorded"]
OF_A_CELL = ["cell_verdict", "golden", "device_spec", "precision", "k", "tp", "case", "device", "family", "policy"]
HIGHER = ("relative", "relative_forced", "over_baseline")
"""Of the figures that are judged by their past, those of which more is better."""
DISTANCES = ("l2", "median", "worst_row", "worst_column", "largest")
"""Relative errors, in whatever unit: never below 0."""
SKEW = timedelta(days=1)
"""The most that the clocks of two machines are taken to differ by, their zones included."""


def refuse_contradictions(rows: pd.DataFrame, files: Sequence[HistoryFile]) -> None:
    """Refuse what a night cannot have written.

    Args:
        rows: of all files, in this version's columns, with the number of its file in the column `FILE`.

    Raises:
        UsageError: rows of a file contradict each other or its name, or are of a day that is still to come.
    """
    found = sorted(_contradictions(rows, files), key=lambda one: one[0])  # the first one of the first file
    if found:
        number, said = found[0]
        raise UsageError(
            f"history file {files[number].path} is not what a night wrote: {said}; move it away to continue without "
            "it, or restore it"
        )


Contradiction = tuple[int, str]
"""The number of a file, and what it says that cannot be."""


def _contradictions(rows: pd.DataFrame, files: Sequence[HistoryFile]) -> Iterator[Contradiction]:
    yield from _nights(rows.drop_duplicates([FILE, *OF_A_NIGHT]), files)
    for row in _first(rows, rows.duplicated([FILE, *FIGURE])):
        yield row[FILE], f"{_figure(row)} is there twice"
    yield from _cells(rows.drop_duplicates([FILE, "cell", "repeat", *OF_A_CELL]))
    yield from _figures(rows)


def _first(rows: pd.DataFrame, which: pd.Series) -> Iterator[pd.Series]:
    """Of each file the first of these rows."""
    if which.any():
        yield from (row for _, row in rows[which].drop_duplicates(FILE).iterrows())


def _nights(heads: pd.DataFrame, files: Sequence[HistoryFile]) -> Iterator[Contradiction]:
    for number in heads[heads.duplicated(FILE)][FILE]:
        yield number, "its rows are of several nights, or of several times"
    firsts = heads.drop_duplicates(FILE)
    for number, night, started in zip(firsts[FILE], firsts["night"], firsts["started"], strict=True):
        if night != files[number].night:
            yield number, f"its rows are of night {night}"
        if (began := f"{started:%Y-%m-%d}") != files[number].date:
            yield number, f"its rows began on {began}"
        if started > datetime.now(UTC) + SKEW:
            late = "every later night would stay behind it, unseen"
            yield number, f"it began on {began}, which is still to come: {late}"


def _cells(heads: pd.DataFrame) -> Iterator[Contradiction]:
    """What every row of a cell says alike, and what its name says as well."""
    twice = heads[heads.duplicated([FILE, "cell", "repeat"])]
    for number, cell in zip(twice[FILE], twice["cell"], strict=True):
        yield number, f"the rows of {cell} say different things of the cell"
    for row in heads.itertuples():
        if row.cell != f"{row.case}.{row.device}.{row.family}.k{row.k}.tp{row.tp}.{row.policy}":
            said = f"{row.cell} is the name of another case, device, family, K, TP or policy than its rows have"
            yield row.file, said
        if row.cell_verdict not in get_args(CellVerdict):
            yield row.file, f"{row.cell} has the verdict {row.cell_verdict!r}, which no cell has"


def _figures(rows: pd.DataFrame) -> Iterator[Contradiction]:
    good, passes = rows["cell_verdict"].isin(GOOD), rows["verdict"].isin(GOOD)
    head = rows["metric"] == "passed"
    judged = rows["metric"].isin(list(HALF_WIDTHS))
    due = rows["metric"].isin(HIGHER).map({True: "higher", False: "lower"})
    wrong = {
        "has a verdict that no figure has": ~rows["verdict"].isin(list(RANK)),
        "fails, and its cell passes": good & (rows["verdict"] == FAIL),
        "is not what its cell's verdict says": head & ((rows["value"] == 1.0) != good),
        "passes without a number": passes & rows["bound"].notna() & rows["value"].isna(),
        "is a distance below 0": rows["metric"].isin(DISTANCES) & (rows["value"] < 0),
        "is said to be better the other way round": judged & (rows["better"].astype(str) != due),
    }
    for said, which in wrong.items():
        for row in _first(rows, which):
            yield row[FILE], f"{_figure(row)} {said}"


def _figure(row: pd.Series) -> str:
    mode = f" ({row['mode']})" if row["mode"] else ""
    return f"{row['cell']}: {row['metric']} of {row['stage']}{mode}"
