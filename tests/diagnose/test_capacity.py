"""Experts of which each takes so many rows of a pass, told from choices by another rule."""

from __future__ import annotations

import numpy as np

from parity.diagnose.components.capacity import full_experts

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


def test_the_capacity_is_told():
    for capacity in (15, 20, 25):
        device = limited(capacity)
        assert (device != GOLDEN).any()
        due = f"experts that have had {capacity} rows of the pass give way to the next best"
        assert full_experts(SCORES, GOLDEN, device, PASSES) == due


def test_other_choices_have_none():
    runner_up = np.argsort(-SCORES, axis=1)[:, 1:3]
    some = np.where((np.arange(ROWS) % 7 == 3)[:, None], runner_up, GOLDEN)
    assert full_experts(SCORES, GOLDEN, some, PASSES) == full_experts(SCORES, GOLDEN, runner_up, PASSES) == ""
