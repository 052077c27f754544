"""Which keys attention saw is told from what it gave, row by row."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest

from parity.diagnose.components.keys import in_faint_keys, in_keys
from parity.diagnose.components.seen_keys import attended
from parity.diagnose.components.wrong import WrongRows
from tests.diagnose.made_up_rows import rows_of, wrong

HEADS, DIM, KEYS, FIRST, WIDTH = 4, 24, 48, 36, 96
RNG = np.random.default_rng(0)
VALUES = RNG.normal(size=(HEADS, KEYS, DIM))
WEIGHT = RNG.normal(size=(WIDTH, HEADS * DIM))
IDS = np.arange(KEYS) % 11


@dataclass
class Row:
    """One of the last rows of a causal pass."""

    position: int
    scores: np.ndarray
    sinks: np.ndarray
    cached: int = FIRST
    keys: int = KEYS

    @property
    def values(self):
        return np.pad(VALUES[:, : self.keys], ((0, 0), (0, 1), (0, 0)))

    @property
    def positions(self):
        return np.append(np.arange(self.keys), -1000)

    @property
    def ids(self):
        return np.append(IDS[: self.keys], -1)

    @property
    def seen(self):
        return np.append(np.arange(self.keys) <= self.position, False)


def row(position, cached=FIRST, keys=KEYS):
    scores = np.pad(RNG.normal(size=(HEADS, keys)), ((0, 0), (0, 1)))
    return Row(position, scores, RNG.normal(size=HEADS), cached, keys)


ROWS = [row(position) for position in range(FIRST, KEYS)]
PASSES = [row(cached + at, cached, cached + rows) for cached, rows in ((24, 6), (30, 3), (33, 5)) for at in range(rows)]


def given(times, rows=ROWS):
    return np.stack([attended(row, times(row)) for row in rows]) @ WEIGHT.T


def seen(row):
    return row.seen.astype(float)


def hidden(which):
    return lambda row: seen(row) * ~which(row)


def misread(row):
    held = seen(row)
    for number in np.flatnonzero(row.seen & (row.positions >= 32) & (row.positions < 40)):
        held[number] -= 1
        held[number - 16] += 1
    return held


def by_split(row, size):
    """Weights [N, T] of the keys that are seen, and the split of each."""
    return np.exp(row.scores) * row.seen, row.positions // size


def averaged(row, size):
    """Softmaxes of splits, averaged; the sink keeps its share."""
    weights, split = by_split(row, size)
    sums = np.stack([weights[:, split == one].sum(axis=1) for one in range(KEYS // size)], axis=1)
    due = sums.sum(axis=1, keepdims=True) / (sums > 0).sum(axis=1, keepdims=True)
    times = due / np.where(sums > 0, sums, np.inf)
    return row.seen * np.append(times[:, split[:-1]], np.zeros((HEADS, 1)), axis=1)


def unscaled(row, size):
    weights, split = by_split(row, size)
    tops = np.stack([weights[:, split == one].max(axis=1) for one in range(KEYS // size)], axis=1)
    times = weights.max(axis=1, keepdims=True) / np.where(tops > 0, tops, np.inf)
    return row.seen * np.append(times[:, split[:-1]], np.zeros((HEADS, 1)), axis=1)


def beside_the_sink(row, at):
    """The sink is one of the scores of its split, and by that one's maximum."""
    weights, split = by_split(row, 16)
    tops = np.stack([weights[:, split == one].max(axis=1) for one in range(KEYS // 16)], axis=1)
    last = int(np.flatnonzero((tops > 0).any(axis=0))[at])
    tops[:, last] = np.maximum(tops[:, last], np.exp(row.sinks))
    times = tops[:, [last]] / np.where(tops > 0, tops, np.inf)
    return row.seen * np.append(times[:, split[:-1]], np.zeros((HEADS, 1)), axis=1)


def zeros(row):
    held = seen(row) * ~np.isin(row.positions, [20, 21])
    held[-1] = 2
    return held


RULES = {
    "the key 2 positions back is not seen": hidden(lambda row: row.positions == row.position - 2),
    "the key at position 5 is not seen": hidden(lambda row: row.positions == 5),
    "keys of token 7 are not seen": hidden(lambda row: row.ids == 7),
    "keys at positions 8 to 11 are not seen": hidden(lambda row: (row.positions >= 8) & (row.positions < 12)),
    "keys of earlier passes from position 21 on are not seen": hidden(
        lambda row: (row.positions >= 21) & (row.positions < FIRST)
    ),
    "splits of 16 keys count alike, whatever their keys weigh": lambda row: averaged(row, 16),
    "splits of 16 keys meet without a common maximum": lambda row: unscaled(row, 16),
    "splits of 16 keys meet without a common maximum, the sink in the last": lambda row: beside_the_sink(row, -1),
    "splits of 16 keys meet without a common maximum, the sink in the first": lambda row: beside_the_sink(row, 0),
    "the key 1 positions ahead is seen too": lambda row: seen(row) + (row.positions == row.position + 1),
    "keys at positions 32 to 39 are what stands 16 positions before": misread,
    "keys at positions 20 to 21 are zeros": zeros,
    "keys of the row's own tile of 8 are seen too": lambda row: (
        seen(row) + (~row.seen & (row.positions // 8 == row.position // 8))
    ),
    "a key of zeros is seen too": lambda row: seen(row) + (row.positions == -1000),
    "the scores are 1.0": lambda row: seen(row) * np.exp(0.05 * row.scores),
    "the scores are 1.01": lambda row: seen(row) * np.exp(0.01 * row.scores),
    "scores and sinks are 0.9": lambda row: seen(row) * np.exp(-0.1 * (row.scores - row.sinks[:, None])),
    "the scores are softly capped at 4": lambda row: seen(row) * np.exp(4 * np.tanh(row.scores / 4) - row.scores),
    "keys that are not seen count 0.05": lambda row: np.where(row.seen, 1.0, 0.05 * (row.positions >= 0)),
}


OF_PASSES = {
    "the key of row 1 of the pass is not seen": hidden(lambda row: row.positions == row.cached + 1),
    "the key 2 before the pass is not seen": hidden(lambda row: row.positions == row.cached - 2),
    "the key of row 2 before the last of the pass is not seen": hidden(lambda row: row.positions == row.keys - 3),
    "the key of the last row of the pass is seen too": lambda row: seen(row) + (row.positions == row.keys - 1),
}


def told(device, rows=ROWS):
    off = wrong(given(seen, rows), device)
    found = in_keys(off, WEIGHT[off.columns], [rows[number] for number in off.numbers])
    return str(found) if found is not None and found.whole else ""


@pytest.mark.parametrize("says", RULES)
def test_the_rule_by_which_keys_are_wrong_is_said(says):
    assert told(given(RULES[says])).startswith(says)


@pytest.mark.parametrize("says", OF_PASSES)
def test_a_key_that_is_wrong_by_its_place_in_the_pass_is_said(says):
    assert told(given(OF_PASSES[says], PASSES), PASSES).startswith(says)


def test_rows_with_a_wrong_key_each_are_listed():
    lost = dict(zip((row.position for row in ROWS), RNG.integers(0, FIRST, len(ROWS)), strict=True))
    assert told(given(hidden(lambda row: row.positions == lost[row.position]))).startswith("wrong keys: not seen")


def test_what_no_keys_explain_is_not_said():
    right = given(seen)
    assert told(right + RNG.normal(size=right.shape)) == ""
    assert told(right * 1.3) == ""


def test_scores_that_are_off_by_less_than_a_row_shows_are_said_over_all_rows():
    device = given(lambda row: seen(row) * np.exp(0.006 * row.scores))
    assert wrong(given(seen), device) is None
    every = WrongRows.of(rows_of(given(seen), device), "bfloat16", whole=True)
    found = in_faint_keys(every, WEIGHT, ROWS)
    assert found is not None and re.match(r"the scores are 1\.00[4-8]\d* times as large", found.says)
    right = WrongRows.of(rows_of(given(seen), given(seen)), "bfloat16", whole=True)
    assert in_faint_keys(right, WEIGHT, ROWS) is None
