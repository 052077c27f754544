"""How much keys and sinks weigh is told from what attention gave."""

from __future__ import annotations

import numpy as np
import pytest

from parity.diagnose.components.key_weights import in_key_weights
from parity.diagnose.components.seen_keys import attended
from tests.diagnose.made_up_rows import wrong
from tests.diagnose.test_keys import FIRST, HEADS, KEYS, RNG, ROWS, WEIGHT, given, seen

SLOPES = np.array([0.0, 0.01, 0.02, 0.04])


def back(row):
    return row.position - row.positions


def weighing(of_scores=lambda row: 0.0, of_sinks=lambda row: 0.0):
    """What rows give whose keys count by e to a power more, and whose sinks do."""
    made = []
    for row in ROWS:
        scores, sinks = row.scores + of_scores(row), row.sinks + of_sinks(row)
        made.append(attended(type(row)(row.position, scores, sinks), row.seen.astype(float)))
    return np.stack(made) @ WEIGHT.T


def largest(row):
    """The largest score of each head, or its sink."""
    return np.maximum(np.where(row.seen, row.scores, -np.inf).max(axis=1), row.sinks)


def by_a_table(below):
    """What counts otherwise where exponentials come of a table of eight corners, straight between them."""
    corners = np.linspace(-8, 0, 9)
    return np.log(np.interp(-below, corners, np.exp(corners))) + below


DEFECTS = {
    "every sink counts 2 times": dict(of_sinks=lambda row: np.log(2)),
    "the sinks are 1.2 times as large": dict(of_sinks=lambda row: 0.2 * row.sinks),
    "other sinks by head: 0.8 (head 1), -1.9 (head 3) higher": dict(of_sinks=lambda row: np.array([0, 0.8, 0, -2])),
    "every sink counts otherwise row by row: 2 times (6 rows), 3 times (6 rows)": dict(
        of_sinks=lambda row: np.log(2 + row.position // 42)
    ),
    "other scores by head: 1.3 (head 2) times as large": dict(
        of_scores=lambda row: 0.3 * row.scores * (np.arange(HEADS) == 2)[:, None]
    ),
    "other scores by head: 0.01 (head 1), 0.02 (head 2), 0.04 (head 3) more": dict(
        of_scores=lambda row: SLOPES[:, None] * back(row) * row.seen
    ),
    "scores bent": dict(of_scores=lambda row: 4 * np.tanh(row.scores / 4) - row.scores),
    "keys so many positions back count otherwise (5 to 9: 0.5 times)": dict(
        of_scores=lambda row: np.log(0.5) * ((back(row) >= 5) & (back(row) < 10))
    ),
    "keys at positions count otherwise (16 to 31: 2 times)": dict(
        of_scores=lambda row: np.log(2) * (row.positions // 16 == 1)
    ),
    "keys count otherwise by the pass that made them (of the row's own pass: 3 times)": dict(
        of_scores=lambda row: np.log(3) * (np.arange(KEYS + 1) >= FIRST)
    ),
    "keys count otherwise by how far their score is below the row's largest (0.25 below: 1.1 times, ": dict(
        of_scores=lambda row: by_a_table(largest(row)[:, None] - np.where(row.seen, row.scores, 0)),
        of_sinks=lambda row: by_a_table(largest(row) - row.sinks),
    ),
    "the scores are otherwise row by row": dict(of_scores=lambda row: 0.02 * (row.position - 40) * row.scores),
}


def told(device):
    off = wrong(given(seen), device)
    found = in_key_weights(off, WEIGHT[off.columns], [ROWS[number] for number in off.numbers])
    return str(found) if found is not None and found.whole else ""


@pytest.mark.parametrize("says", DEFECTS)
def test_what_keys_and_sinks_weigh_is_said(says):
    assert told(weighing(**DEFECTS[says])).startswith(says)


def test_what_no_weights_explain_is_not_said():
    right = given(seen)
    assert told(right + RNG.normal(size=right.shape)) == ""
    assert told(right * 1.3) == ""
