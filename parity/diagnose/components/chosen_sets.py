"""Choices of several at once by another rule: experts that are never taken, or always, ranks, and groups of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

FEW = 3
"""Fewer wrong choices fit nearly any rule."""

NEARLY = 0.97
"""The share of all choices that a rule has to make as the device does: near ties may go either way."""


def rules_of_sets(scores: np.ndarray, golden: np.ndarray, device: np.ndarray, told: bool) -> Iterator[str]:
    """Rules by which experts [R, X] are chosen of scores [R, E]; `told`: see `in_choices`."""
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
