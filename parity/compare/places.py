"""Where a row of a comparison sits: its stage's labels, the head that is worst, and what the bad rows have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.compare.facts import Facts
from parity.compare.relations import relation
from parity.compare.report import Place
from parity.compare.rows import StageRows
from parity.policy import Row


def labels(rows: StageRows, row: Row) -> dict[str, Any]:
    """What every result of this stage says of itself."""
    named = rows.named
    return dict(
        stage=named.name,
        family=named.stage.template,
        layer=named.layer,
        judge=row.judge,
        reason=row.reason,
        rows=len(rows.golden),
    )


def place_of(rows: StageRows, index: int) -> Place:
    """A row's labels, with the head of its largest error where the stage has a head axis."""
    head = None
    if {"N", "G"} & set(rows.named.stage.axes):
        gap = rows.device[index].astype(np.float64) - rows.golden[index].astype(np.float64)
        head = int((gap**2).sum(axis=-1).argmax())
    prompt, round_, position = (int(label[index]) for label in (rows.prompt, rows.round, rows.position))
    return Place(rows.named.name, rows.named.layer, prompt, round_, position, head)


def first_of(rows: StageRows, bad: np.ndarray) -> int:
    """The earliest of the bad rows [R]: by round, then prompt, then position."""
    return min(np.flatnonzero(bad).tolist(), key=lambda row: (rows.round[row], rows.prompt[row], rows.position[row]))


def where(
    rows: StageRows, bad: np.ndarray, judged: np.ndarray, size: np.ndarray, first: int | None = None
) -> dict[str, Any]:
    """The places of a result that is no pass: the first row, the worst one, and which rows are bad.

    Args:
        bad, judged: bool [R].
        size: [R], how far a row is off.
        first: its number, where that is no bad row alone.
    """
    worst = int(np.where(judged & (bad if bad.any() else True), size, -np.inf).argmax())
    first = first_of(rows, bad) if first is None and bad.any() else worst if first is None else first
    return dict(
        first=place_of(rows, first),
        worst=place_of(rows, worst),
        bad_rows=int(bad.sum()),
        relation=relation(bad, judged, Facts.of(rows.source, rows)) if rows.source is not None else "",
    )
