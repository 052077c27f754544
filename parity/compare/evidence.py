"""What a pass must not rest on: a golden that says nothing, a floor that bounds nothing, a copied answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parity.compare.floor import WIDEST
from parity.compare.rows import StageRows
from parity.metrics import PairMetrics
from parity.policy import Row

FEW = 64
"""Elements from which "every one of them is the golden's" is no accident: half of them differ in the last
bit where a device rounds on its own."""


@dataclass(frozen=True)
class Lack:
    """Why a stage cannot be judged, in words."""

    note: str


def lack(rows: StageRows, device: PairMetrics, floor: PairMetrics, row: Row) -> Lack | None:
    """The evidence this stage lacks, if any."""
    if device.golden_constant:
        return Lack("the golden is constant: it tells nothing from anything")
    if device.count == 0:
        return Lack("there is no finite element on both sides")
    if floor.rel_l2 > WIDEST and row.judge == "noise":
        return Lack(f"the noise floor is {floor.rel_l2:.0%} of the golden: it bounds nothing")
    if row.judge == "noise" and not row.copies and _copied(rows):
        return Lack("it is the golden bit for bit, which the bfloat16 reference is not: was the answer handed in?")
    return None


def _copied(rows: StageRows) -> bool:
    """Whether the device is the golden, rounded once, where the floor shows that more rounding was due."""
    return rows.golden.size >= FEW and _rounded(rows.golden, rows.device) and not _rounded(rows.golden, rows.floor)


def _rounded(golden: np.ndarray, other: np.ndarray) -> bool:
    """Whether `other` is the golden in its own dtype."""
    return bool(np.array_equal(golden.astype(other.dtype), other))
