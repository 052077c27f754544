"""Pairs of queries and keys that turn otherwise by position: angles fitted pair by pair to what attention gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from parity.diagnose.components.seen_keys import Keys, attended
from parity.diagnose.components.wrong import DOWN_TO_NOISE, FULL, Component, WrongRows, best_of

ROWS, LEAST = 12, 4
"""Wrong rows that frequencies are fitted to, evenly chosen; of fewer they are not told."""

NEAREST = 16
"""Positions that the first rows reach back: no pair turns so fast that one tried is a whole turn beside the next."""

BUDGET = 20_000_000_000
"""Multiplications that trying every frequency of every pair once may cost."""

FASTER = np.geomspace(1 / 64, 8, 28)
"""How many times as fast a pair may turn, beside not at all and as fast as any other."""

GAIN, HOPE = 0.01, 0.2
"""The share of what is left that another pair has to gain, and of all that the first has to."""

SOON, HALF, MOST = 3, 0.5, 0.9
"""So many pairs gain half of the error, and all of them most of it: where they do not, something else is wrong, and
pairs would only take a little more of it each."""

FINER, SWEEPS = 8, 2
"""How often a frequency that is found is made finer, by halves, and all of them when another joins them."""

FEWER, BEST = 3, 12
"""Every pair is tried on one of so many rows first, and those that leave least there on all."""

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


def _back(keys: TurnedKeys, kept: bool) -> np.ndarray:
    """Positions by which the row's angle is ahead of each key's, [T]: of a cached key that keeps its own, the row's
    own; the last key stands nowhere."""
    back = np.append(keys.position - keys.positions[:-1], 0)
    return np.where(np.arange(len(back)) < keys.cached, keys.position, back) if kept else back


def _reach(keys: TurnedKeys, kept: bool) -> int:
    """The furthest that a row's angle is ahead of a key that it sees: so often a pair turns what it is too fast."""
    return int(np.abs(_back(keys, kept)[keys.seen]).max(initial=0))


@dataclass
class _Row:
    """A row whose scores are turned further, pair by pair; of its keys those up to the last that it sees."""

    values: np.ndarray
    seen: np.ndarray
    sinks: np.ndarray | None
    pairs: np.ndarray
    scores: np.ndarray
    back: np.ndarray

    @classmethod
    def of(cls, keys: TurnedKeys, kept: bool) -> _Row:
        """Cached keys are turned too, or `kept`."""
        some = slice(int(np.flatnonzero(keys.seen).max(initial=0)) + 1)
        pairs, back = keys.pairs()[:, some], _back(keys, kept)[some]
        return cls(keys.values[:, some], keys.seen[some], keys.sinks, pairs, keys.scores[:, some], back)

    def moved(self, pair: int, by: float) -> np.ndarray:
        """What turning a pair by so much for each position adds to the scores, [N, T]."""
        return np.asarray((self.pairs[:, :, pair] * (np.exp(1j * by * self.back) - 1)).real)

    def gives(self, more: np.ndarray | float = 0.0) -> np.ndarray:
        """What is mixed, [N * D], with so much more in the scores."""
        return attended(replace(self, scores=self.scores + more), self.seen.astype(float))


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
    frequencies, shifts = rows[0].frequencies, _fitted(wrong, weight, rows, kept)
    if not shifts or frequencies is None:
        return None
    model = np.stack([_given(_Row.of(row, kept), weight, shifts) for row in rows])
    return wrong.judged(f"{wrong.where}{_in_words(shifts, frequencies)}", model, len(shifts))


def _fitted(wrong: WrongRows, weight: np.ndarray, rows: Sequence[TurnedKeys], kept: bool) -> dict[int, float]:
    """By how much each pair turns further for a position, of those that do.

    Rows that reach a few keys back tell it roughly, and without taking one turn for another; those that reach further
    tell it finely.
    """
    reaches, shifts, before = np.array([_reach(row, kept) for row in rows]), dict[int, float](), NEAREST
    for reach, some in _nearest_first(reaches):
        fit = _Fit.of(wrong, weight, rows, some, kept, shifts)
        fit.refine(1 / before)
        if fit.left() > DOWN_TO_NOISE**2 * fit.error.size:
            fit.select()
            if fit.left() > (1 - MOST) * fit.total:
                return {}
        shifts, before = fit.shifts, reach
    return shifts


def _nearest_first(reaches: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Up to `ROWS` rows, evenly chosen of those that reach so far back at the most; then twice as far, up to all."""
    reach, known = NEAREST, 0
    while True:
        inside = np.flatnonzero(reaches <= reach)
        if len(inside) > known and (len(inside) >= LEAST or len(inside) == len(reaches)):
            known = len(inside)
            yield reach, inside[np.unique(np.linspace(0, known - 1, ROWS).astype(int))]
        if known == len(reaches):
            return
        reach *= 2


@dataclass
class _Fit:
    """Pairs that turn otherwise, `shifts` radians a position further each, fitted to some wrong rows."""

    held: list[_Row]
    plain: list[np.ndarray]
    error: np.ndarray
    noise: np.ndarray
    weight: np.ndarray
    frequencies: np.ndarray
    shifts: dict[int, float]

    @classmethod
    def of(
        cls,
        wrong: WrongRows,
        weight: np.ndarray,
        rows: Sequence[TurnedKeys],
        some: np.ndarray,
        kept: bool,
        shifts: dict[int, float],
    ) -> _Fit:
        """Beginning with what is known of the shifts."""
        held, frequencies = [_Row.of(rows[at], kept) for at in some], rows[0].frequencies
        assert frequencies is not None
        error, noise = wrong.error[some][:, wrong.columns], wrong.noise[some]
        fit = cls(held, [row.gives() for row in held], error, noise, weight, frequencies, {})
        for pair, by in shifts.items():
            fit.turn(pair, by)
        return fit

    def left(self, pair: int = 0, by: float = 0.0, every: int = 1) -> float:
        """The squared error that is left, in x noise, of every so many rows, where a pair turns further still."""
        some = slice(None, None, every)
        made = (
            row.gives(row.moved(pair, by)) - was for row, was in zip(self.held[some], self.plain[some], strict=True)
        )
        rest = self.error[some] - np.stack([self.weight @ one.ravel() for one in made])
        return float(((rest / self.noise[some]) ** 2).sum())

    @property
    def total(self) -> float:
        """The squared error where no pair turns further."""
        return float(((self.error / self.noise) ** 2).sum())

    def turn(self, pair: int, by: float) -> None:
        """Let a pair turn by so much, whatever it did."""
        for row in self.held:
            row.scores = row.scores + row.moved(pair, by) - row.moved(pair, self.shifts.get(pair, 0.0))
        self.shifts[pair] = by

    def refine(self, step: float | None = None) -> None:
        """Every pair that turns made finer, from steps of so much; or of as much as lies between two that are tried."""
        for each, there in list(self.shifts.items()):
            apart = max(abs(there), self.frequencies[each]) * np.log(FASTER[1] / FASTER[0]).item()
            self.turn(each, 0.0)
            self.turn(each, _finer(partial(self.left, each), there, step or apart))

    def select(self) -> None:
        """One pair after the other while it helps."""
        before = self.left()
        while len(self.shifts) < len(self.frequencies):
            if len(self.shifts) == SOON and before > HALF * self.total:
                return
            tried = [
                (self.left(pair, by, FEWER), pair, by)
                for pair in range(len(self.frequencies))
                if pair not in self.shifts
                for by in _others(self.frequencies, pair)
            ]
            found, pair, by = min((self.left(pair, by), pair, by) for _, pair, by in sorted(tried)[:BEST])
            if before - found < max(GAIN * before, 0.0 if self.shifts else HOPE * self.total):
                return
            self.turn(pair, by)
            for _ in range(SWEEPS):
                self.refine()
            before = self.left()
            if before <= DOWN_TO_NOISE**2 * self.error.size:
                return


def _others(frequencies: np.ndarray, pair: int) -> Iterator[float]:
    """By how much else it may turn."""
    own = frequencies[pair]
    yield from (own * (faster - 1) for faster in (0.0, *FASTER))
    yield from (other - own for other in np.delete(frequencies, pair))


def _finer(left: Callable[[float], float], by: float, step: float) -> float:
    """The best near one that was tried, from steps of this size on."""
    for _ in range(FINER):
        by = min((by + step * at for at in (-1, -0.5, 0, 0.5, 1)), key=left)
        step /= 2
    return by


def _given(row: _Row, weight: np.ndarray, shifts: dict[int, float]) -> np.ndarray:
    """What turning these pairs further changes of a row, [wrong columns]."""
    more = sum(row.moved(pair, by) for pair, by in shifts.items())
    return np.asarray(weight @ (row.gives(more) - row.gives()).ravel())


def _in_words(shifts: dict[int, float], frequencies: np.ndarray) -> str:
    """Each pair with how fast it turns."""
    told = []
    for pair in sorted(shifts):
        faster = 1 + shifts[pair] / frequencies[pair]
        told.append(f"pair {pair} {'does not turn' if abs(faster) < FULL else f'{faster:.3g} times as fast'}")
    more = f" and {len(told) - LISTED} more" if len(told) > LISTED else ""
    return f"queries and keys turn otherwise by position: {', '.join(told[:LISTED])}{more} of {len(frequencies)} pairs"
