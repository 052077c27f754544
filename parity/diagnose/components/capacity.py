"""Experts that take so many rows of a pass and no more: the next best are chosen in their place."""

from __future__ import annotations

import numpy as np

from parity.diagnose.components.chosen_sets import NEARLY


def full_experts(scores: np.ndarray, golden: np.ndarray, device: np.ndarray, passes: np.ndarray) -> str:
    """The capacity that makes every wrong choice, and hardly any other; '' where none does.

    Args:
        scores: [R, E]; golden, device: the experts chosen, [R, X].
        passes: the number of each row's pass, [R], rows in their order.
    """
    wrong = (np.sort(golden, axis=1) != np.sort(device, axis=1)).any(axis=1)
    mine = np.stack([(golden == one).any(axis=1) for one in range(scores.shape[1])], axis=1)
    before = np.concatenate([_before(mine[passes == one]) for one in np.unique(passes)])
    behind = np.where(mine, before, -1).max(axis=1)
    for capacity in np.unique(behind[wrong]).tolist():
        if capacity < 1:
            continue
        made = np.concatenate([_chosen(scores[passes == one], golden.shape[1], capacity) for one in np.unique(passes)])
        alike = (np.sort(made, axis=1) == np.sort(device, axis=1)).all(axis=1)
        if alike[wrong].all() and alike.mean() >= NEARLY:
            return f"experts that have had {capacity} rows of the pass give way to the next best"
    return ""


def _before(mine: np.ndarray) -> np.ndarray:
    """How many rows of a pass chose each expert before each of them."""
    return np.asarray(np.cumsum(mine, axis=0) - mine)


def _chosen(scores: np.ndarray, count: int, capacity: int) -> np.ndarray:
    """The best of the experts that have room, row by row."""
    had, chosen = np.zeros(scores.shape[1], np.int64), []
    for row in scores:
        best = np.argsort(-np.where(had < capacity, row, -np.inf), kind="stable")[:count]
        had[best] += 1
        chosen.append(best)
    return np.array(chosen)
