"""Experts of which each takes so many rows of a pass, told from choices by another rule."""

from __future__ import annotations

import numpy as np

from parity.diagnose.components.chosen_sets import rules_of_sets

ROWS, EXPERTS, CHOSEN = 60, 6, 2
SCORES = np.random.default_rng(0).standard_normal((ROWS, EXPERTS)) + np.array([1.5, 0, 0, 0, 0, 0])
PASSES = np.repeat([0, 1, 2], [40, 10, 10])
GOLDEN = np.argsort(-SCORES, axis=1)[:, :CHOSEN]


def limited(capacity: int) -> np.ndarray:
    chosen, had = [], {}
    for row, number in zip(SCORES, PASSES.tolist(), strict=True):
        free = [one for one in np.argsort(-row).tolist() if had.get((number, one), 0) < capacity][:CHOSEN]
        chosen.append(free)
        for one in free:
            had[number, one] = had.get((number, one), 0) + 1
    return np.array(chosen)


def told(device: np.ndarray) -> list[str]:
    return [says for says in rules_of_sets(SCORES, GOLDEN, device, False, PASSES) if "have had" in says]


def test_the_capacity_is_told():
    for capacity in (15, 20, 25):
        device = limited(capacity)
        assert (device != GOLDEN).any()
        due = f"experts that have had {capacity} rows of the pass give way to the next best"
        assert told(device) == [due]


def test_other_choices_have_none():
    runner_up = np.argsort(-SCORES, axis=1)[:, 1:3]
    some = np.where((np.arange(ROWS) % 7 == 3)[:, None], runner_up, GOLDEN)
    assert told(some) == told(runner_up) == []


def test_two_choices_are_no_capacity():
    """Of the last rows of a pass nothing contradicts one."""
    device = limited(25)
    few = np.where((np.arange(ROWS) < np.flatnonzero((device != GOLDEN).any(axis=1))[2])[:, None], device, GOLDEN)
    assert (few != GOLDEN).any(axis=1).sum() == 2 and told(few) == []
