"""Pairs of queries and keys that turn otherwise by position: angles fitted pair by pair to what attention gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from parity.diagnose.components.seen_keys import Keys, mixed
from parity.diagnose.components.wrong import FULL, Component, WrongRows, best_of

ROWS, LEAST = 12, 4
"""Wrong rows that frequencies are fitted to, evenly chosen; of fewer they are not told."""

BUDGET = 20_000_000_000
"""Multiplications that trying every frequency of every pair once may cost."""

FASTER = np.geomspace(1 / 64, 8, 28)
"""How many times as fast a pair may turn, beside not at all and as fast as any other."""

GAIN, HOPE = 0.01, 0.2
"""The share of what is left that another pair has to gain, and of all that the first has to."""

FINER, SWEEPS = 8, 2
"""How often a frequency that is found is made finer, by halves, and all of them when another joins them."""

LISTED = 6
"""Pairs that are listed."""


class TurnedKeys(Keys, Protocol):
    """One row's keys, and what each pair of dimensions adds to their scores.

    `pairs()` is complex [N, T, P], of which the real part is a pair's share of the score; `cached` counts the first
    keys, which earlier passes left; `frequencies` [P] in radians a position, None where no table tells.
    """

    cached: int
    frequencies: np.ndarray | None

    @property
    def pairs(self) -> Callable[[], np.ndarray]:
        """Makes them."""
        ...


@dataclass
class _Row:
    """A row whose scores are turned further, pair by pair; cached keys where they are not `kept` as they are."""

    keys: TurnedKeys
    pairs: np.ndarray
    scores: np.ndarray
    kept: bool

    @property
    def back(self) -> np.ndarray:
        """Positions by which the row's angle is ahead of each key's, [T]: of a cached key that keeps its own, the row's
        own; the last key stands nowhere."""
        back = np.append(self.keys.position - self.keys.positions[:-1], 0)
        return np.where(np.arange(len(back)) < self.keys.cached, self.keys.position, back) if self.kept else back

    def moved(self, pair: int, by: float) -> np.ndarray:
        """What turning a pair by so much for each position adds to the scores, [N, T]."""
        return np.asarray((self.pairs[:, :, pair] * (np.exp(1j * by * self.back) - 1)).real)


def in_frequencies(wrong: WrongRows, weight: np.ndarray, rows: Sequence[TurnedKeys]) -> Component | None:
    """The pairs that turn otherwise, and how fast.

    Args:
        weight: of the output projection, float64 [wrong columns, N * D].
        rows: the keys of each wrong row.
    """
    keys = rows[0]
    if keys.frequencies is None or len(rows) < LEAST:
        return None
    tried = ROWS * len(keys.frequencies) * (len(FASTER) + len(keys.frequencies))
    if tried * keys.values[0].size * len(keys.values) > BUDGET:
        return None
    ways = (False, True) if any(row.cached for row in rows) else (False,)
    return best_of(_turned(wrong, weight, rows, kept) for kept in ways)


def _turned(wrong: WrongRows, weight: np.ndarray, rows: Sequence[TurnedKeys], kept: bool) -> Component | None:
    """The same with cached keys turned too, or `kept`, as where a local comparison hands them over."""
    frequencies = rows[0].frequencies
    some = np.unique(np.linspace(0, len(rows) - 1, ROWS).astype(int))
    shifts = _fitted(wrong, weight, rows, some, kept)
    if not shifts or frequencies is None:
        return None
    model = np.stack([_given(row, weight, shifts, kept) for row in rows])
    return wrong.judged(f"{wrong.where}{_in_words(shifts, frequencies)}", model, len(shifts))


def _fitted(
    wrong: WrongRows, weight: np.ndarray, rows: Sequence[TurnedKeys], some: np.ndarray, kept: bool
) -> dict[int, float]:
    """By how much each pair turns further for a position, of those that do: one pair after the other while it helps."""
    error, noise = wrong.error[some][:, wrong.columns], wrong.noise[some]
    held = [_Row(rows[at], rows[at].pairs(), rows[at].scores, kept) for at in some]
    plain = [mixed(row.keys, row.scores) for row in held]
    frequencies = rows[0].frequencies
    assert frequencies is not None

    def left(pair: int, by: float) -> float:
        made = (mixed(row.keys, row.scores + row.moved(pair, by)) - was for row, was in zip(held, plain, strict=True))
        rest = error - np.stack([weight @ one.ravel() for one in made])
        return float(((rest / noise) ** 2).sum())

    shifts: dict[int, float] = {}
    total = before = left(0, 0.0)

    def turn(pair: int, by: float) -> None:
        for row in held:
            row.scores = row.scores + row.moved(pair, by) - row.moved(pair, shifts.get(pair, 0.0))
        shifts[pair] = by

    while len(shifts) < len(frequencies):
        tried = [
            (left(pair, by), pair, by)
            for pair in range(len(frequencies))
            if pair not in shifts
            for by in _others(frequencies, pair)
        ]
        found, pair, by = min(tried)
        if before - found < max(GAIN * before, 0.0 if shifts else HOPE * total):
            break
        turn(pair, by)
        for _ in range(SWEEPS):
            for each, there in list(shifts.items()):
                turn(each, 0.0)
                turn(each, _finer(partial(left, each), there, frequencies[each]))
        before = left(0, 0.0)
    return shifts


def _others(frequencies: np.ndarray, pair: int) -> Iterator[float]:
    """By how much else it may turn."""
    own = frequencies[pair]
    yield from (own * (faster - 1) for faster in (0.0, *FASTER))
    yield from (other - own for other in np.delete(frequencies, pair))


def _finer(left: Callable[[float], float], by: float, own: float) -> float:
    """The best near one that was tried."""
    step = max(abs(by), own) * np.log(FASTER[1] / FASTER[0]).item()
    for _ in range(FINER):
        by = min((by + step * at for at in (-1, -0.5, 0, 0.5, 1)), key=left)
        step /= 2
    return by


def _given(keys: TurnedKeys, weight: np.ndarray, shifts: dict[int, float], kept: bool) -> np.ndarray:
    """What turning these pairs further changes of a row, [wrong columns]."""
    row = _Row(keys, keys.pairs(), keys.scores, kept)
    scores = row.scores + sum(row.moved(pair, by) for pair, by in shifts.items())
    return np.asarray(weight @ (mixed(keys, scores) - mixed(keys, keys.scores)).ravel())


def _in_words(shifts: dict[int, float], frequencies: np.ndarray) -> str:
    """Each pair with how fast it turns."""
    told = []
    for pair in sorted(shifts):
        faster = 1 + shifts[pair] / frequencies[pair]
        told.append(f"pair {pair} {'does not turn' if abs(faster) < FULL else f'{faster:.3g} times as fast'}")
    more = f" and {len(told) - LISTED} more" if len(told) > LISTED else ""
    return f"queries and keys turn otherwise by position: {', '.join(told[:LISTED])}{more} of {len(frequencies)} pairs"
