"""A file of history against itself: what a night cannot have written was written by somebody else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, get_args

from parity.compare.report import FAIL, PASS, RANK, WARN
from parity.errors import UsageError
from parity.history.series import HALF_WIDTHS
from parity.nightly.records import CellVerdict

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

GOOD = (PASS, WARN)
FIGURE = ["cell", "repeat", "stage", "mode", "metric"]
OF_A_NIGHT = ["night", "started", "recorded"]
OF_A_CELL = ["cell_verdict", "golden", "device_spec", "precision", "k", "tp", "case", "device", "family", "policy"]
HIGHER = ("relative", "relative_forced", "over_baseline")
"""Of the figures that are judged by their past, those of which more is better."""
DISTANCES = ("l2", "median", "worst_row", "worst_column", "largest")
"""Relative errors, in whatever unit: never below 0."""
SKEW = timedelta(days=1)
"""The most that the clocks of two machines are taken to differ by, their zones included."""


def checked(stored: pa.Table, path: str, night: str, date: str) -> pa.Table:
    """The rows of one file, if a night can have written them.

    Args:
        stored: in this version's columns.
        night, date: what the file's name says.

    Raises:
        UsageError: they contradict each other or the file's name, or are of a day that is still to come.
    """
    if len(stored) and (said := next(_contradictions(stored.to_pandas(), night, date), "")):
        raise UsageError(
            f"history file {path} is not what a night wrote: {said}; move it away to continue without it, or restore it"
        )
    return stored


def _contradictions(rows: pd.DataFrame, night: str, date: str) -> Iterator[str]:
    yield from _night(rows, night, date)
    if (twice := rows.duplicated(FIGURE)).any():
        yield f"{_figure(rows[twice].iloc[0])} is there twice"
    yield from _cells(rows.drop_duplicates(["cell", "repeat", *OF_A_CELL]))
    yield from _figures(rows)


def _night(rows: pd.DataFrame, night: str, date: str) -> Iterator[str]:
    if len(rows.drop_duplicates(OF_A_NIGHT)) > 1:
        yield "its rows are of several nights, or of several times"
    first = rows.iloc[0]
    if first["night"] != night:
        yield f"its rows are of night {first['night']}"
    if (began := f"{first['started']:%Y-%m-%d}") != date:
        yield f"its rows began on {began}"
    if first["started"] > datetime.now(UTC) + SKEW:
        yield f"it began on {began}, which is still to come: every later night would stay behind it, unseen"


def _cells(heads: pd.DataFrame) -> Iterator[str]:
    """What every row of a cell says alike, and what its name says as well."""
    for cell in heads[heads.duplicated(["cell", "repeat"])]["cell"]:
        yield f"the rows of {cell} say different things of the cell"
    for row in heads.itertuples():
        if row.cell != f"{row.case}.{row.device}.{row.family}.k{row.k}.tp{row.tp}.{row.policy}":
            yield f"{row.cell} is the name of another case, device, family, K, TP or policy than its rows have"
        if row.cell_verdict not in get_args(CellVerdict):
            yield f"{row.cell} has the verdict {row.cell_verdict!r}, which no cell has"


def _figures(rows: pd.DataFrame) -> Iterator[str]:
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
        if which.any():
            yield f"{_figure(rows[which].iloc[0])} {said}"


def _figure(row: pd.Series) -> str:
    mode = f" ({row['mode']})" if row["mode"] else ""
    return f"{row['cell']}: {row['metric']} of {row['stage']}{mode}"
