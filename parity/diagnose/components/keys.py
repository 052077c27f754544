"""Which keys attention saw: hidden ones, further ones, and ones that stand in another's place, told row by row.

A softmax does not know the order of its keys. What is cached wrongly, masked wrongly or read from another page is, to a
row, a key less, a key more or a key twice; each changes its output by what can be worked out from its share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Protocol

import numpy as np

from parity.diagnose.components.wrong import DOWN_TO_NOISE, Component, WrongRows, best_of

ROWS, STEPS = 24, 20
"""Wrong rows that are looked at, evenly chosen, and changes of the keys of each."""

FEW = 3
"""Wrong keys of a row at the most, where no rule has them."""

LEADERS, HALVED = 3, 0.5
"""The rules with which every other is tried, and the share of what one leaves that two may leave."""

PAGES = (1, 8, 16, 32, 64, 128)
"""Keys of a page: what is wrong ends where one does."""

LEAKS = np.geomspace(1e-4, 1.0, 25)
"""How often a key that is not seen may count, tried first."""

EMPTY = -(1 << 30)
"""The position of a key that holds zeros."""


class Keys(Protocol):
    """One row's view of the keys of a layer: scores [N, T] of all keys, values [N, T, D], seen [T], sinks [N] or None.

    The last holds zeros and stands at `EMPTY`: nobody should see it.

    `positions` [T] and the row's own `position`; `ids` [T] of the tokens at the keys, -1 where none is known.
    """

    scores: np.ndarray
    values: np.ndarray
    seen: np.ndarray
    sinks: np.ndarray | None
    positions: np.ndarray
    position: int
    ids: np.ndarray


def attended(keys: Keys, times: np.ndarray) -> np.ndarray:
    """What is mixed [N * D] where each key counts so many times [T]."""
    largest = np.where(times > 0, keys.scores, -np.inf).max(axis=1, keepdims=True)
    if keys.sinks is not None:
        largest = np.maximum(largest, keys.sinks[:, None])
    if not np.isfinite(largest).all():
        return np.zeros(keys.values.shape[0] * keys.values.shape[2])
    shares = times * np.exp(np.minimum(keys.scores - largest, 0.0))
    total = shares.sum(axis=1, keepdims=True)
    if keys.sinks is not None:
        total = total + np.exp(keys.sinks[:, None] - largest)
    return np.asarray(np.einsum("nt,ntd->nd", shares / total, keys.values).ravel())


@dataclass(frozen=True)
class Change:
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
    def exchanges(self) -> list[tuple[int, int]]:
        """How far what may stand in a lost key's place is from it, `EMPTY` for zeros, and the lost key's position."""
        olds, news = (self.keys.positions[which].tolist() for which in (self.lost, self.gained))
        return [(new if new == EMPTY else new - old, old) for old in olds for new in news]


def in_keys(wrong: WrongRows, weight: np.ndarray, rows: Sequence[Keys]) -> Component | None:
    """The rule by which keys are hidden, shown or exchanged that explains the wrong rows.

    Args:
        weight: of the output projection, float64 [wrong columns, N * D].
        rows: the keys of each wrong row.
    """
    some = np.unique(np.linspace(0, len(rows) - 1, ROWS).astype(int))
    few = _Explained(wrong, weight, rows, some)
    found = [_changed(rows[number], weight, wrong.error[number, wrong.columns], wrong.noise[number]) for number in some]
    ranked = sorted(_rules(found), key=few.left)
    pairs = (_together(*pair) for pair in product(ranked[:LEADERS], ranked) if pair[0] is not pair[1])
    simple = min((*ranked[:1], *_leaks(few)), key=few.left)
    best = min((simple, *pairs), key=few.left)
    says, rule = best if few.left(best) < HALVED * few.left(simple) else simple
    moved = _Explained(wrong, weight, rows, np.arange(len(rows))).moved(rule)
    told = wrong.judged(f"{wrong.where}{says}", moved, 2)
    return told if told is not None and told.whole else best_of((told, _one_by_one(wrong, few, found)))


def _one_by_one(wrong: WrongRows, few: _Explained, found: Sequence[Change]) -> Component | None:
    """What the rows looked at saw, where each has a few wrong keys of its own and nothing more."""
    changes = int(sum(abs(one.by).sum() for one in found))
    if changes > FEW * len(found):
        return None
    made = [attended(one.keys, one.keys.seen + one.by) for one in found]
    moved = np.stack([mixed - before for mixed, before in zip(made, few.plain, strict=True)]) @ few.weight.T
    total, left = float((few.error**2).sum()), float(((few.error - moved) ** 2).sum())
    rest = float(np.sqrt(np.mean(((few.error - moved) / few.noise) ** 2)))
    says = f"{wrong.where}wrong keys: {_counted('not seen', found, -1)}{_counted('seen too', found, 1)}"
    return Component(says.rstrip("; "), 1 - left / total, rest, numbers=changes)


def _counted(what: str, found: Sequence[Change], sign: int) -> str:
    """The keys that most rows lack, or see too."""
    places = Counter(int(place) for one in found for place in one.keys.positions[np.sign(one.by) == sign])
    told = [f"{'one of zeros' if place == EMPTY else place} ({rows} rows)" for place, rows in places.most_common(4)]
    return f"{what} {', '.join(told)}; " if told else ""


class _Explained:
    """What rules leave of the error of some of the wrong rows."""

    def __init__(self, wrong: WrongRows, weight: np.ndarray, rows: Sequence[Keys], some: np.ndarray) -> None:
        self.rows, self.weight = [rows[number] for number in some], weight
        self.plain = [attended(one, one.seen.astype(float)) for one in self.rows]
        self.error, self.noise = wrong.error[some][:, wrong.columns], wrong.noise[some]

    def moved(self, rule: Rule) -> np.ndarray:
        """What a rule changes, [rows, wrong columns]."""
        made = [attended(one, rule(one)) - before for one, before in zip(self.rows, self.plain, strict=True)]
        return np.asarray(np.stack(made) @ self.weight.T)

    def left(self, told: tuple[str, Rule]) -> float:
        """What is left, in units of noise."""
        return float((((self.error - self.moved(told[1])) / self.noise) ** 2).sum())


def _together(one: tuple[str, Rule], other: tuple[str, Rule]) -> tuple[str, Rule]:
    """Two rules at once."""
    first, second = one[1], other[1]
    return f"{one[0]}, and {other[0]}", lambda keys: np.maximum(first(keys) + second(keys) - keys.seen, 0.0)


def _leaks(few: _Explained) -> Iterator[tuple[str, Rule]]:
    """Keys that are not seen, and count a little all the same."""
    factors, best = LEAKS, 0.0
    for _ in range(4):
        best = min(factors, key=lambda factor: few.left(("", _leaking(factor))))
        factors = np.geomspace(best / factors[1] * factors[0], best * factors[1] / factors[0], 9)
    yield f"keys that are not seen count {best:.3g} times", _leaking(best)


def _leaking(factor: float) -> Rule:
    return lambda keys: np.where(keys.seen, 1.0, np.where(keys.positions == EMPTY, 0.0, factor))


def _changed(keys: Keys, weight: np.ndarray, error: np.ndarray, noise: np.ndarray) -> Change:
    """The keys of one row that count otherwise, one after another while that helps."""
    times, begun = keys.seen.astype(float), keys.seen.astype(float)
    plain = attended(keys, begun) @ weight.T
    for _ in range(STEPS):
        left = error - (attended(keys, times) @ weight.T - plain)
        if np.sqrt(np.mean((left / noise) ** 2)) <= DOWN_TO_NOISE:
            break
        tried = [(number, step) for number in range(len(times)) for step in (-1, 1) if 0 <= times[number] + step <= 2]
        moved = _once_more(keys, times, tried) @ weight.T - plain
        best = int(((error - moved) ** 2).sum(axis=1).argmin())
        if ((error - moved[best]) ** 2).sum() >= (left**2).sum():
            break
        times[tried[best][0]] += tried[best][1]
    return Change(keys, times - begun)


def _once_more(keys: Keys, times: np.ndarray, tried: Sequence[tuple[int, int]]) -> np.ndarray:
    """What is mixed with each of some keys once more, or once less, [tried, N * D]."""
    largest = keys.scores.max(axis=1, keepdims=True)
    if keys.sinks is not None:
        largest = np.maximum(largest, keys.sinks[:, None])
    parts = np.exp(keys.scores - largest)
    total = parts @ times + (0.0 if keys.sinks is None else np.exp(keys.sinks - largest[:, 0]))
    mixed = np.einsum("nt,ntd->nd", parts * times, keys.values)
    which, steps = (np.array(side) for side in zip(*tried, strict=True))
    one = parts[:, which] * steps
    sums = np.maximum(total[:, None] + one, 1e-300)
    made = (mixed[:, None] + one[..., None] * keys.values[:, which]) / sums[..., None]
    return np.asarray(made.transpose(1, 0, 2).reshape(len(tried), -1))


class Rule(Protocol):
    """How often each key counts for a row, [T]."""

    def __call__(self, keys: Keys) -> np.ndarray: ...


def _rules(found: Sequence[Change]) -> Iterator[tuple[str, Rule]]:
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


def _of_one_kind(what: str, pairs: Sequence[tuple[Change, int]], step: int) -> Iterator[tuple[str, Rule]]:
    """Keys at one distance, at one position, of one token, or in a range of distances or positions."""
    if not pairs:
        return
    positions = [int(one.keys.positions[number]) for one, number in pairs]
    distances = [int(one.keys.position - one.keys.positions[number]) for one, number in pairs]
    for apart, _ in Counter(distances).most_common(2):
        yield (
            f"the key {_away(apart)} is {what}",
            _by(lambda keys, apart=apart: keys.position - keys.positions == apart, step),
        )
    for place, _ in Counter(positions).most_common(2):
        yield f"the key at position {place} is {what}", _by(lambda keys, place=place: keys.positions == place, step)
    tokens = Counter(int(one.keys.ids[number]) for one, number in pairs)
    for token, _ in tokens.most_common(2):
        if token >= 0:
            yield f"keys of token {token} are {what}", _by(lambda keys, token=token: keys.ids == token, step)
    for low, high in _spans(positions):
        if high > low:
            yield f"keys at positions {low} to {high} are {what}", _by(partial(_between, low=low, high=high), step)
    near, far = min(distances), max(distances)
    if far > near:
        yield (
            f"keys {near} to {far} positions back are {what}",
            _by(lambda keys: (keys.position - keys.positions >= near) & (keys.position - keys.positions <= far), step),
        )


def _between(keys: Keys, low: int, high: int) -> np.ndarray:
    return np.asarray((keys.positions >= low) & (keys.positions <= high))


def _away(apart: int) -> str:
    return (
        f"{apart} positions back" if apart > 0 else "of the row itself" if apart == 0 else f"{-apart} positions ahead"
    )


def _by(which: Rule, step: int) -> Rule:
    """Hidden where they are seen, or once more."""

    def times(keys: Keys) -> np.ndarray:
        chosen = which(keys)
        return np.where(chosen, np.maximum(keys.seen + step, 0), keys.seen).astype(float)

    return times


def _exchanged(apart: int, low: int, high: int) -> Iterator[tuple[str, Rule]]:
    """Keys in whose place others stand, or zeros."""

    def times(keys: Keys) -> np.ndarray:
        held = keys.seen.astype(float)
        places = {int(place): number for number, place in enumerate(keys.positions)}
        for number in np.flatnonzero(_between(keys, low, high) & keys.seen):
            other = places.get(EMPTY if apart == EMPTY else int(keys.positions[number]) + apart)
            if other is not None:
                held[number] -= 1
                held[other] += 1
        return held

    where = f"what stands {abs(apart)} positions {'before' if apart < 0 else 'behind'}"
    span = f"the key at position {low} is" if low == high else f"keys at positions {low} to {high} are"
    yield f"{span} {'zeros' if apart == EMPTY else where}", times
