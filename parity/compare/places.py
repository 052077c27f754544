"""Where a row of a comparison sits: its stage's labels, and the head that is worst."""

from __future__ import annotations

from typing import Any

import numpy as np

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
