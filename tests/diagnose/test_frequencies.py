"""Pairs that turn otherwise by position are told from what attention gave."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from parity.diagnose.components.frequencies import in_frequencies
from parity.diagnose.components.seen_keys import attended
from parity.diagnose.components.turned_queries import in_query_positions
from tests.diagnose.made_up_rows import wrong
from tests.diagnose.test_keys import DIM, FIRST, HEADS, IDS, KEYS, VALUES, WEIGHT

PAIRS = DIM // 2
FREQUENCIES = 1000.0 ** -(np.arange(PAIRS) / PAIRS)
RNG = np.random.default_rng(3)
Q, K = (RNG.normal(size=(HEADS, KEYS, PAIRS, 2)) @ (1, 1j) for _ in range(2))


@dataclass
class Row:
    """One of the last rows of a causal pass, its pairs turned by these frequencies; cached keys by their own."""

    position: int
    turning: np.ndarray
    cached: int = 0
    stands: int | None = None

    values = np.pad(VALUES, ((0, 0), (0, 1), (0, 0)))
    positions, ids, sinks, frequencies = np.append(np.arange(KEYS), -1000), IDS, None, FREQUENCIES

    def pairs(self):
        at = np.arange(KEYS)[:, None]
        keys = np.where(at < self.cached, FREQUENCIES, self.turning) * at
        apart = np.exp(1j * (self.turning * self.position - keys))
        made = Q[:, self.row, None] * K.conj() * apart * DIM**-0.5
        return np.pad(made, ((0, 0), (0, 1), (0, 0)))

    @property
    def row(self):
        return self.position if self.stands is None else self.stands

    @property
    def scores(self):
        return self.pairs().real.sum(-1)

    @property
    def seen(self):
        return np.append(np.arange(KEYS) <= self.row, False)


def rows(turning, cached=0, first=FIRST):
    return [Row(position, turning, cached) for position in range(first, KEYS)]


def given(turning, cached=0, first=FIRST):
    return np.stack([attended(row, row.seen.astype(float)) for row in rows(turning, cached, first)]) @ WEIGHT.T


def told(device, cached=0, first=FIRST):
    off, clean = wrong(given(FREQUENCIES, first=first), device), rows(FREQUENCIES, cached, first)
    found = in_frequencies(off, WEIGHT[off.columns], [clean[number] for number in off.numbers])
    return str(found) if found is not None and found.whole else ""


@pytest.mark.parametrize(
    "faster, says",
    [
        ({3: 0.25}, "pair 3 0.25 times as fast of 12"),
        ({0: 0.0}, "pair 0 does not turn of 12"),
        ({4: 0.4, 5: 0.3}, "pair 4 0.4 times as fast, pair 5 0.3 times as fast of 12"),
    ],
)
def test_pairs_that_turn_otherwise_are_said(faster, says):
    turning = FREQUENCIES * [faster.get(pair, 1.0) for pair in range(PAIRS)]
    assert says in told(given(turning))


def test_pairs_that_turn_often_are_told_by_rows_that_reach_a_few_keys_back():
    turning = FREQUENCIES * np.select([np.arange(PAIRS) == 1, np.arange(PAIRS) == 2], [0.62, 2.78], 1.0)
    assert "pair 1 0.62 times as fast, pair 2 2.78 times as fast of 12" in told(given(turning, first=3), first=3)


def test_cached_keys_that_keep_their_own_turns_are_told_from_those_that_turn_too():
    turning = FREQUENCIES * np.where(np.arange(PAIRS) == 6, 0.5, 1.0)
    assert "pair 6 0.5 times as fast of 12" in told(given(turning, FIRST), FIRST)


def test_what_no_frequency_explains_is_not_said():
    right = given(FREQUENCIES)
    assert told(right + RNG.normal(size=right.shape)) == ""


def moved(steps):
    """What rows give whose queries turn so many positions further than they stand, [R, C]."""
    made = []
    for row, step in zip(rows(FREQUENCIES), steps, strict=True):
        turned = replace(row, position=row.position + step, stands=row.position)
        made.append(attended(turned, turned.seen.astype(float)))
    return np.stack(made) @ WEIGHT.T


def placed(device):
    off = wrong(given(FREQUENCIES), device)
    made = in_query_positions(off, WEIGHT[off.columns], [rows(FREQUENCIES)[number] for number in off.numbers])
    return str(made) if made is not None and made.whole else ""


def test_queries_that_turn_by_another_position_are_said():
    count = KEYS - FIRST
    assert placed(moved([-3] * count)).startswith("queries turn by the position 3 before their rows'")
    odd = [-1 if number % 3 else -FIRST for number in range(count)]
    assert "queries turn by other positions than their rows': 1 before (" in placed(moved(odd))
    assert placed(given(FREQUENCIES) + RNG.normal(size=given(FREQUENCIES).shape)) == ""
