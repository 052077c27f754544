"""Splits of the keys that count by factors of their own are told, however they were merged."""

from __future__ import annotations

import numpy as np
import pytest

from parity.diagnose.components.splits import in_splits
from parity.diagnose.components.wrong import WrongRows
from tests.diagnose.made_up_rows import rows_of, wrong
from tests.diagnose.test_keys import FIRST, KEYS, RNG, ROWS, WEIGHT, given, hidden, seen


def merged(cut, by=lambda row: 0.5 + RNG.random((4, 4))):
    """What rows give whose splits count by factors of their own, the sum of all unchanged."""
    made = []
    for row in ROWS:
        times = np.concatenate([by(row)[:, cut(row)[:-1]], np.zeros((4, 1))], axis=1)
        scores = np.where(row.seen, row.scores, -np.inf)
        top = np.maximum(scores.max(axis=1), row.sinks)
        parts = np.exp(scores - top[:, None])
        shares = parts / (parts.sum(axis=1) + np.exp(row.sinks - top))[:, None] * times
        made.append(np.einsum("nt,ntd->nd", shares, row.values).ravel())
    return np.stack(made) @ WEIGHT.T


CUTS = {
    "splits of 16 keys": lambda row: row.positions // 16,
    "2 splits of the cached keys": lambda row: np.minimum(np.arange(KEYS + 1) // (FIRST // 2), 1),
    "keys of earlier passes and of the row's own": lambda row: (np.arange(KEYS + 1) >= FIRST) * 1,
}


def told(device):
    off = wrong(given(seen), device)
    return str(in_splits(off, WEIGHT[off.columns], [ROWS[number] for number in off.numbers]))


@pytest.mark.parametrize("says", CUTS)
def test_splits_are_told_by_where_they_are_cut(says):
    assert told(merged(CUTS[says])).startswith(
        f"{says}: each counts by a factor of its own, row by row and head by head"
    )


def test_what_is_no_factor_of_splits_is_not_told():
    right = given(seen)
    assert told(right + RNG.normal(size=right.shape)) == "None"
    assert told(given(hidden(lambda row: row.positions % 3 == 0))) == "None"
    barely = WrongRows.of(rows_of(right, right * 1.002), "bfloat16", whole=True)
    assert in_splits(barely, WEIGHT[barely.columns], ROWS) is None
