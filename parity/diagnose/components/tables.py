"""A stage whose rows ids choose of a table: which rows a device has instead, and by what rule of the ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from parity.diagnose.components.numbered import Lanes, in_runs, steps_of
from parity.diagnose.components.wrong import Component, WrongRows

ASKED = 256
"""Wrong rows that are looked up, of many."""

BLOCK = 1 << 14
"""Rows of the table that are compared at once."""

DEAREST = 2.0
"""What another run of ids costs, in squares of noise for each column: more than a row that is right has."""

DISTINCT, LIKE = 3, 0.9
"""Ids that have one row between them, at the least, and its cosine with the mean of a table that it is about."""

TOLD = 3
"""Ids that are told one by one, where no rule gives them."""


def in_table(wrong: WrongRows, table: tuple[np.ndarray, np.ndarray]) -> Iterator[Component | None]:
    """The rows of other ids, each wrong row's the nearest one.

    Args:
        table: the ids [R] of the stage's rows and the rows [V, C] of all ids.
    """
    ids, held = table[0][wrong.numbers], table[1]
    count = len(wrong.numbers)
    some = np.unique(np.linspace(0, count - 1, min(count, ASKED)).astype(int))
    found = _nearest(wrong.device[some], held)
    for says, other, numbers in _rules(ids[some], found, len(held)):
        taken = other(ids)
        if np.array_equal(taken[some], found) and taken.min() >= 0 and taken.max() < len(held):
            change = held[taken].astype(np.float64) - wrong.golden
            yield wrong.judged(f"{wrong.where}{says}", change[:, wrong.columns], numbers)
            yield _one_row(wrong, ids, held)
            return
    yield _in_runs(wrong, ids, held, steps_of(ids[some], found))
    if len(some) == count:
        pairs = dict(zip(ids.tolist(), found.tolist(), strict=True))
        told = ", ".join(f"{mine} as {theirs}" for mine, theirs in sorted(pairs.items())[:TOLD])
        more = f" and {len(pairs) - TOLD} more" if len(pairs) > TOLD else ""
        taken = held[found].astype(np.float64) - wrong.golden
        says = f"{wrong.where}the embeddings of other ids: {told}{more}"
        yield wrong.judged(says, taken[:, wrong.columns], count)


def _one_row(wrong: WrongRows, ids: np.ndarray, held: np.ndarray) -> Component | None:
    """One row that is no id's for ids that are not one another: what new rows of a longer table begin with."""
    row = wrong.device.mean(axis=0)
    if len(np.unique(ids)) < DISTINCT or not row.any():
        return None
    mean = held.mean(axis=0, dtype=np.float64)
    like = float(row @ mean) > LIKE * np.linalg.norm(row) * np.linalg.norm(mean)
    says = f"{wrong.where}one and the same row whatever the id{', about the mean of all embeddings' if like else ''}"
    change = np.broadcast_to(row, wrong.golden.shape) - wrong.golden
    return wrong.judged(says, change[:, wrong.columns], int(wrong.columns.sum()))


def _in_runs(wrong: WrongRows, ids: np.ndarray, held: np.ndarray, steps: list[int]) -> Component | None:
    """Run by run of the ids the rows of others, each so many off, or zeros."""
    order = np.argsort(ids, kind="stable")
    there = ids[:, None] + np.array(steps)
    inside = (there >= 0) & (there < len(held))
    apart = [((wrong.device - held[np.clip(one, 0, len(held) - 1)]) ** 2).sum(axis=1) for one in there.T]
    costs = np.column_stack([*np.where(inside, np.stack(apart, axis=1), np.inf).T, (wrong.device**2).sum(axis=1)])
    costs /= wrong.noise**2
    runs = in_runs(ids[order], (*steps, None), costs[order], DEAREST * wrong.device.shape[1])
    if runs is None:
        return None
    by = np.empty(len(ids), object)
    by[order] = runs.steps
    zero = np.array([step is None for step in by])
    taken = held[ids + np.where(zero, 0, by).astype(np.int64)].astype(np.float64)
    change = np.where(zero[:, None], 0.0, taken) - wrong.golden
    says = f"{wrong.where}embeddings of ids in runs: {runs.said('those of the id')}"
    return wrong.judged(says, change[:, wrong.columns], 2 * len(runs.runs))


def _nearest(rows: np.ndarray, held: np.ndarray) -> np.ndarray:
    """The number of the nearest row of a table, of each row: [R]."""
    best, found = np.full(len(rows), np.inf), np.zeros(len(rows), np.int64)
    for first in range(0, len(held), BLOCK):
        block = held[first : first + BLOCK].astype(np.float64)
        apart = (block**2).sum(axis=1) - 2 * rows @ block.T
        nearest = apart.argmin(axis=1)
        least = apart[np.arange(len(rows)), nearest]
        closer = least < best
        best[closer], found[closer] = least[closer], first + nearest[closer]
    return found


Rule = Callable[[np.ndarray], np.ndarray]
"""From the ids [R] of rows to those whose rows of the table they have."""


def _rules(ids: np.ndarray, found: np.ndarray, size: int) -> Iterator[tuple[str, Rule, int]]:
    """What may make the ids found [R] of the rows' own: (what it is, the rule, its numbers)."""
    first, step, bit = int(found[0]), int(found[0] - ids[0]), int(found[0] ^ ids[0])
    yield f"the embedding of id {first}", lambda own: np.full_like(own, first), int(first > 0)
    sizes = range(int(ids.min()), int(found.max()), -1)  # ids below it are right
    most = next((most for most in sizes if (ids % most == found).all()), size)
    yield f"the embedding of the id modulo {most}", lambda own: own % most, 1
    beside = {1: "behind", -1: "before"}.get(step, f"{step:+d}")
    yield f"the embedding of the id {beside}", lambda own: (own + step) % size, int(abs(step) > 1)
    if bit & (bit - 1) == 0:
        yield f"the embedding of the id with bit {bit} changed", lambda own: own ^ bit, 1
    lanes = Lanes.of(ids, found, size)
    if lanes:
        yield f"the embedding of id i is that of {lanes}", lanes.becomes, 2
