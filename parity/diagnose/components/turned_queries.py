"""Queries that are turned as if their rows stood elsewhere: each row's own position, fitted to what attention gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from parity.diagnose.components.frequencies import TurnedKeys
from parity.diagnose.components.wrong import Component, WrongRows

ROWS, HOPE = 6, 0.5
"""Wrong rows that are asked first, evenly chosen, and the share of their error that other positions have to explain."""

FAR = 64
"""Positions ahead of a row's own that are tried; behind it all are, to the first one and as many before it."""

SAID = 4
"""Positions that are listed where rows have their own."""


def in_query_positions(wrong: WrongRows, weight: np.ndarray, rows: Sequence[TurnedKeys]) -> Component | None:
    """The positions by which queries turn instead of their rows', keys by their own.

    Args:
        weight: of the output projection, float64 [wrong columns, N * D].
        rows: the keys of each wrong row.
    """
    if rows[0].frequencies is None:
        return None
    error, count = wrong.error[:, wrong.columns], len(rows)
    first = np.unique(np.linspace(0, count - 1, min(ROWS, count)).astype(int)).tolist()
    found = {at: _nearest(rows[at], weight, error[at]) for at in first}
    total, left = float((error[first] ** 2).sum()), sum(rest for _, _, rest in found.values())
    if left > (1 - HOPE) * total:
        return None
    found |= {at: _nearest(rows[at], weight, error[at]) for at in range(count) if at not in found}
    steps = [found[at][0] for at in range(count)]
    model = np.stack([found[at][1] for at in range(count)])
    says, numbers = _in_words(steps, _of_the_pass_before(wrong, steps))
    return wrong.judged(f"{wrong.where}{says}", model, numbers)


def _nearest(keys: TurnedKeys, weight: np.ndarray, error: np.ndarray) -> tuple[int, np.ndarray, float]:
    """The positions further by which one row's query turns, what that changes [wrong columns], and what it leaves."""
    steps = np.arange(-keys.position - FAR, FAR + 1)
    assert keys.frequencies is not None
    turns = np.exp(1j * np.outer(keys.frequencies, steps))
    pairs = keys.pairs()[:, keys.seen]
    scores = (pairs @ turns).real.transpose(2, 0, 1)
    shares = _shares(scores, keys.sinks)
    by_head = shares.transpose(1, 0, 2) @ keys.values[:, keys.seen]
    given = by_head.transpose(1, 0, 2).reshape(len(steps), -1)
    made = (given - given[steps == 0]) @ weight.T
    left = ((made - error) ** 2).sum(axis=1)
    best = int(left.argmin())
    return int(steps[best]), made[best], float(left[best])


def _shares(scores: np.ndarray, sinks: np.ndarray | None) -> np.ndarray:
    """Shares of scores [A, N, T], of which a sink [N] takes its own."""
    if sinks is not None:
        scores = np.concatenate([scores, np.broadcast_to(sinks[:, None], (*scores.shape[:2], 1))], axis=2)
    each = np.exp(scores - scores.max(axis=2, keepdims=True))
    shares = each / each.sum(axis=2, keepdims=True)
    return np.asarray(shares if sinks is None else shares[..., :-1])


def _of_the_pass_before(wrong: WrongRows, steps: Sequence[int]) -> bool:
    """Whether every row's query has the position that the row of its place had in the pass before."""
    every = wrong.every
    if every is None:
        return False
    passes = np.stack([every.prompt, every.round], axis=1)
    _, begin, of = np.unique(passes, axis=0, return_index=True, return_inverse=True)
    index = np.arange(len(passes)) - begin[of.ravel()]
    places = [*zip(*passes.T.tolist(), index.tolist(), strict=True)]
    known = dict(zip(places, every.position.tolist(), strict=True))
    mine = [(places[number], int(every.position[number])) for number in wrong.numbers.tolist()]
    there = [known.get((prompt, round_ - 1, row), own) - own for (prompt, round_, row), own in mine]
    return any(steps) and there == [*steps]


def _in_words(steps: Sequence[int], of_the_pass_before: bool) -> tuple[str, int]:
    """What is said, and how many numbers it takes."""
    if of_the_pass_before:
        return "queries turn by the position that their place in the pass had a round before", 1
    counted = Counter(steps).most_common()
    if len(counted) == 1:
        return f"queries turn by the position {_away(steps[0])} their rows'", 1
    return f"queries turn by other positions than their rows': {listed_steps(steps, _away)}", len(steps)


def listed_steps(steps: Sequence[int], say: Callable[[int], str]) -> str:
    """How far rows are off, each number with how many rows it is of, the most frequent first."""
    counted = Counter(steps).most_common()
    told = ", ".join(f"{say(step)} ({rows} rows)" for step, rows in counted[:SAID])
    return told + (f" and {len(counted) - SAID} more" if len(counted) > SAID else "")


def _away(step: int) -> str:
    return f"{abs(step)} {'before' if step < 0 else 'behind'}" if step else "of"
