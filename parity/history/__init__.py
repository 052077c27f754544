"""The nights' figures in one table, and what changed in them: docs/history.md.

append(url, night, results)     one more file
frame = load(url, last=WINDOW)  the table
verdicts(frame, night)          what changed, gravest first
waiting(frame, night)           cells that have too few nights for a band
suspicious(frame, night, found) whether a cell is measured again tonight
Bands(frame, night).get(key)    the band of one figure
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parity.history.changes import Change, gathered, surroundings
from parity.history.series import WINDOW, series, stamps
from parity.history.steps import Bands
from parity.history.store import append, load, nights

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from parity.nightly.records import CellResult, Night

__all__ = ["WINDOW", "Bands", "Change", "append", "load", "nights", "suspicious", "verdicts", "waiting"]


def verdicts(frame: pd.DataFrame, night: str) -> list[Change]:
    """What changed up to this night, against the run's own past; later nights of the table are not looked at.

    A step needs `bands.NEEDED` earlier nights of its cell, a drift `drift.NEEDED` nights; a verdict that changed needs one.

    Raises:
        UsageError: the night is not in the table.
    """
    from parity.history import cells, figures

    past = stamps(frame, night)
    found = gathered([*cells.findings(frame, past), *figures.findings(series(frame, past))])
    return [surroundings(one, frame) for one in found]


def waiting(frame: pd.DataFrame, night: str) -> dict[str, int]:
    """Cells of this night whose figures have no band yet, and how many further nights they need for one."""
    from parity.history.bands import NEEDED
    from parity.history.cells import CELL

    names = [one.night for one in stamps(frame, night)]
    figures = frame[frame["night"].isin(names) & (frame["stage"] != CELL)].drop_duplicates(["night", "cell"])
    counts = figures["cell"].astype(str).value_counts()
    tonight = frame[frame["night"] == night]["cell"].astype(str).unique()
    need = {cell: NEEDED + 1 - int(counts.get(cell, 0)) for cell in sorted(tonight)}
    return {cell: missing for cell, missing in need.items() if missing > 0}


def suspicious(frame: pd.DataFrame, night: Night, found: Sequence[CellResult]) -> bool:
    """Whether a cell of a night that is not recorded yet is measured once more; `found`: its result and its repeats so far.

    Args:
        frame: the nights before, with their repeats.
    """
    import pandas as pd

    from parity.history.again import another
    from parity.history.schema import moment, table

    tonight = table(night, found).to_pandas().assign(date=moment(night.started).date().isoformat())
    past = frame[frame["cell"] == found[0].cell.name]
    text = {name: str for name in tonight.columns if tonight[name].dtype == "category"}
    shared = [name for name in tonight.columns if name in past.columns]
    whole = pd.concat(
        [one[shared].astype({name: str for name in text if name in shared}) for one in (past, tonight)],
        ignore_index=True,
    )
    return another(series(whole, stamps(whole, night.name)), len(night.cells))
