"""One row's keys, what attention gives of them, and the rules by which some may count otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

PAGES = (1, 8, 16, 32, 64, 128)
"""Keys of a page: what is wrong ends where one does."""


class Scored(Protocol):
    """Keys by their scores [N, T], with values [N, T, D] and sinks [N] or None."""

    scores: np.ndarray
    values: np.ndarray
    sinks: np.ndarray | None


class Keys(Scored, Protocol):
    """One row's view of the keys of a layer: scores [N, T] of all keys, values [N, T, D], seen [T], sinks [N] or None.

    The last holds zeros and stands below all others: nobody should see it.

    `positions` [T] and the row's own `position`; `ids` [T] of the tokens at the keys, -1 where none is known; `cached`
    of the first keys are of earlier passes.
    """

    seen: np.ndarray
    positions: np.ndarray
    position: int
    ids: np.ndarray
    cached: int


def attended(keys: Scored, times: np.ndarray) -> np.ndarray:
    """What is mixed [N * D] where each key counts so many times, [T] or [N, T]."""
    largest = np.where(times > 0, keys.scores, -np.inf).max(axis=1, keepdims=True)
    if keys.sinks is not None:
        largest = np.maximum(largest, keys.sinks[:, None])
    if not np.isfinite(largest).all():
        return np.zeros(keys.values.shape[0] * keys.values.shape[2])
    shares = times * np.exp(np.minimum(keys.scores - largest, 0.0))
    total = shares.sum(axis=1, keepdims=True)
    if keys.sinks is not None:
        total = total + np.exp(keys.sinks[:, None] - largest)
    return np.asarray(((shares / total)[:, None] @ keys.values).ravel())


def mixed(keys: Keys, scores: np.ndarray) -> np.ndarray:
    """What is mixed [N * D] of the keys that are seen, by other scores [N, T]."""
    return attended(_Scored(keys, scores), keys.seen.astype(float))


class _Scored:
    """The same keys with other scores."""

    def __init__(self, keys: Keys, scores: np.ndarray) -> None:
        self.scores, self.values, self.seen, self.sinks = scores, keys.values, keys.seen, keys.sinks
        self.positions, self.position, self.ids, self.cached = keys.positions, keys.position, keys.ids, keys.cached


@dataclass(frozen=True)
class KeyChange:
    """How often one row's keys count, more or less often than they should, [T]."""

    keys: Keys
    by: np.ndarray

    @property
    def lost(self) -> np.ndarray:
        """Keys that should be seen."""
        return np.flatnonzero(self.by < 0)

    @property
    def gained(self) -> np.ndarray:
        """Keys that should not, or once more."""
        return np.flatnonzero(self.by > 0)

    @property
    def exchanges(self) -> list[tuple[int | None, int]]:
        """How far what may stand in a lost key's place is from it, None for zeros, and the lost key's position."""
        nothing = int(self.keys.positions[-1])
        olds, news = (self.keys.positions[which].tolist() for which in (self.lost, self.gained))
        return [(None if new == nothing else new - old, old) for old in olds for new in news]


class KeyRule(Protocol):
    """How often each key counts for a row, [T], or for each of its heads, [N, T]."""

    def __call__(self, keys: Keys) -> np.ndarray: ...


def rules(found: Sequence[KeyChange]) -> Iterator[tuple[str, KeyRule]]:
    """What the changes of the rows may have in common, each with what it says."""
    lost = [(one, number) for one in found for number in one.lost]
    gained = [(one, number) for one in found for number in one.gained]
    for what, pairs, step in (("not seen", lost, -1), ("seen too", gained, 1)):
        yield from _of_one_kind(what, pairs, step)
    exchanges = [pair for one in found for pair in one.exchanges]
    for apart, _ in Counter(apart for apart, _ in exchanges).most_common(10):
        for low, high in _spans([old for other, old in exchanges if other == apart]):
            yield from _exchanged(apart, low, high)


def _spans(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """From the least to the largest, to the ends of their pages, and the page that most are of: some are chance."""
    spans = [(min(numbers) // page * page, max(numbers) // page * page + page - 1) for page in PAGES]
    for page in PAGES[1:]:
        ((most, _),) = Counter(number // page for number in numbers).most_common(1)
        spans.append((most * page, most * page + page - 1))
    yield from dict.fromkeys(spans)


def _of_one_kind(what: str, pairs: Sequence[tuple[KeyChange, int]], step: int) -> Iterator[tuple[str, KeyRule]]:
    """Keys at one distance, at one position, of one token, or in a range of distances or positions."""
    if any(number == len(one.by) - 1 for one, number in pairs):
        yield f"a key of zeros is {what}", _by(lambda keys: keys.positions == keys.positions[-1], step)
    pairs = [(one, number) for one, number in pairs if number < len(one.by) - 1]
    if not pairs:
        return
    positions = [int(one.keys.positions[number]) for one, number in pairs]
    distances = [int(one.keys.position - one.keys.positions[number]) for one, number in pairs]
    for says, of in NUMBERED:
        for place, _ in Counter(int(of(one.keys)[number]) for one, number in pairs).most_common(2):
            if of is not _ids or place >= 0:
                yield f"{says(place)} {what}", _by(lambda keys, of=of, place=place: of(keys) == place, step)
    for low, high in _spans(positions):
        if high > low:
            yield f"keys at positions {low} to {high} are {what}", _by(partial(_between, low=low, high=high), step)
    for what_of, which in (("the pass' own rows", _own), ("earlier passes", _cached)):
        yield f"keys of {what_of} are {what}", _by(which, step)
    for low in _firsts(pairs):
        yield (
            f"keys of earlier passes from position {low} on are {what}",
            _by(lambda keys, low=low: _cached(keys) & (keys.positions >= low), step),
        )
    for page in PAGES[1:]:
        later = step > 0
        yield f"keys of the row's own tile of {page} are {what}", _by(partial(_in_tile, page=page, later=later), step)
    near, far = min(distances), max(distances)
    if far > near:
        yield (
            f"keys {near} to {far} positions back are {what}",
            _by(lambda keys: (keys.position - keys.positions >= near) & (keys.position - keys.positions <= far), step),
        )


def _ids(keys: Keys) -> np.ndarray:
    return keys.ids


def _from_pass(keys: Keys) -> np.ndarray:
    """Which row of the row's own pass each key is of; those of earlier passes below zero, that of zeros far below."""
    return np.append(np.arange(len(keys.seen) - 1) - keys.cached, np.iinfo(np.int64).min)


def _to_end(keys: Keys) -> np.ndarray:
    """How many rows of the row's own pass are behind each key; below zero for that of zeros."""
    return len(keys.seen) - 2 - np.arange(len(keys.seen))


def _in_pass(row: int) -> str:
    return f"the key of row {row} of the pass is" if row >= 0 else f"the key {-row} before the pass is"


def _before_end(rows: int) -> str:
    return f"the key of {'the last row' if rows == 0 else f'row {rows} before the last'} of the pass is"


NUMBERED: tuple[tuple[Callable[[int], str], Callable[[Keys], np.ndarray]], ...] = (
    (lambda apart: f"the key {_away(apart)} is", lambda keys: keys.position - keys.positions),
    (lambda place: f"the key at position {place} is", lambda keys: keys.positions),
    (lambda token: f"keys of token {token} are", _ids),
    (_in_pass, _from_pass),
    (_before_end, _to_end),
)
"""What keys of different rows may have in common, [T], with what is said of those of one number."""


def _firsts(pairs: Sequence[tuple[KeyChange, int]]) -> list[int]:
    """Where the changed keys of most rows begin."""
    firsts: dict[int, int] = {}
    for one, number in pairs:
        position = int(one.keys.positions[number])
        firsts[id(one)] = min(firsts.get(id(one), position), position)
    return [position for position, _ in Counter(firsts.values()).most_common(2)]


def _in_tile(keys: Keys, page: int, later: bool) -> np.ndarray:
    """Keys of the tile that the row itself is of: those behind it, or those before it."""
    beside = keys.positions > keys.position if later else keys.positions < keys.position
    return np.asarray((keys.positions // page == keys.position // page) & beside)


def _own(keys: Keys) -> np.ndarray:
    """Keys of the row's own pass."""
    return np.arange(len(keys.seen)) >= keys.cached


def _cached(keys: Keys) -> np.ndarray:
    return ~_own(keys)


def _between(keys: Keys, low: int, high: int) -> np.ndarray:
    return np.asarray((keys.positions >= low) & (keys.positions <= high))


def _away(apart: int) -> str:
    return (
        f"{apart} positions back" if apart > 0 else "of the row itself" if apart == 0 else f"{-apart} positions ahead"
    )


def _by(which: KeyRule, step: int) -> KeyRule:
    """Hidden where they are seen, or once more."""

    def times(keys: Keys) -> np.ndarray:
        chosen = which(keys)
        return np.where(chosen, np.maximum(keys.seen + step, 0), keys.seen).astype(float)

    return times


def _exchanged(apart: int | None, low: int, high: int) -> Iterator[tuple[str, KeyRule]]:
    """Keys in whose place others stand, or zeros."""

    def times(keys: Keys) -> np.ndarray:
        held, last = keys.seen.astype(float), len(keys.seen) - 1
        lost = np.flatnonzero(_between(keys, low, high) & keys.seen)
        gained = np.full(len(lost), last) if apart is None else lost + apart  # positions follow each other
        there = (gained >= 0) & ((gained < last) | (apart is None))
        held[lost[there]] -= 1
        np.add.at(held, gained[there], 1)
        return held

    where = "zeros" if apart is None else f"what stands {abs(apart)} positions {'before' if apart < 0 else 'behind'}"
    span = f"the key at position {low} is" if low == high else f"keys at positions {low} to {high} are"
    yield f"{span} {where}", times


def leaking(factor: float) -> KeyRule:
    def times(keys: Keys) -> np.ndarray:
        held = np.where(keys.seen, 1.0, factor)
        held[-1] = 0.0
        return held

    return times


def sharper(factor: float, of_sinks: bool) -> KeyRule:
    """Scores, or scores and sinks, so many times as large: each key of a head counts by that more, [N, T]."""

    def times(keys: Keys) -> np.ndarray:
        more = (factor - 1) * keys.scores
        if of_sinks and keys.sinks is not None:
            more = more - (factor - 1) * keys.sinks[:, None]  # shares are alike if the sink keeps its size
        return np.asarray(keys.seen * np.exp(more))

    return times


def capped(most: float, of_sinks: bool) -> KeyRule:
    """Scores, or scores and sinks, by a hyperbolic tangent that ends at so much: [N, T]."""

    def times(keys: Keys) -> np.ndarray:
        more = most * np.tanh(keys.scores / most) - keys.scores
        if of_sinks and keys.sinks is not None:
            more = more - (most * np.tanh(keys.sinks / most) - keys.sinks)[:, None]
        return np.asarray(keys.seen * np.exp(more))

    return times
