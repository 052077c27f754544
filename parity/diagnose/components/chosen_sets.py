"""Choices of several at once by another rule: experts that are never taken, or always, ranks, groups of them, and
those that take so many rows of a pass."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

FEW = 3
"""Fewer wrong choices fit nearly any rule."""

NEARLY = 0.97
"""The share of all choices that a rule has to make as the device does: near ties may go either way."""


def rules_of_sets(
    scores: np.ndarray, golden: np.ndarray, device: np.ndarray, told: bool, passes: np.ndarray
) -> Iterator[str]:
    """Rules by which experts [R, X] are chosen of scores [R, E]; `told`: see `in_choices`.

    Args:
        passes: the number of each row's pass, [R], rows in their order.
    """
    count = scores.shape[1]
    wrong = (np.sort(golden, axis=1) != np.sort(device, axis=1)).any(axis=1)
    legal = ((device >= 0) & (device < count)).all()
    if wrong.sum() < FEW or not legal:
        return
    mine, theirs = (np.stack([(side == one).any(axis=1) for one in range(count)], axis=1) for side in (golden, device))
    for one in range(count):
        if mine[wrong, one].all() and not theirs[:, one].any():
            yield f"expert {one} is never chosen"
        if theirs[wrong, one].all() and not mine[wrong, one].any() and theirs[:, one].all():
            yield f"expert {one} is always chosen"
    chosen = golden.shape[1]
    if (theirs[wrong].sum(axis=1) < chosen).all():
        yield "one expert is chosen twice"
    if count % chosen == 0:
        groups = scores.reshape(len(scores), chosen, -1).argmax(axis=2) + np.arange(chosen) * (count // chosen)
        if (np.sort(groups, axis=1) == np.sort(device, axis=1)).all(axis=1).mean() >= NEARLY:
            yield f"the best of each of {chosen} groups of experts"
    first, last = int(device[wrong].min()), int(device[wrong].max())
    if chosen <= last - first + 1 < count:
        inside = np.argsort(-scores[:, first : last + 1], axis=1, kind="stable")[:, :chosen] + first
        if (np.sort(inside, axis=1) == np.sort(device, axis=1))[wrong].all():
            yield f"the best of experts {first} to {last} alone"
    ranks = (-scores).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    taken = np.sort(np.take_along_axis(ranks, device.astype(np.int64), axis=1), axis=1)[wrong]
    if told and (taken == taken[0]).all():
        yield f"the experts of rank {', '.join(str(rank + 1) for rank in taken[0])}"
    yield from filter(None, [_full_experts(scores, golden, device, passes)])


def _full_experts(scores: np.ndarray, golden: np.ndarray, device: np.ndarray, passes: np.ndarray) -> str:
    """The capacity that makes every wrong choice, and hardly any other, '' where none does: the next best are chosen in
    the place of experts that are full."""
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
