"""Which keys attention saw: hidden ones, further ones, and ones that stand in another's place, told row by row.

A softmax does not know the order of its keys. What is cached wrongly, masked wrongly or read from another page is, to a
row, a key less, a key more or a key twice; each changes its output by what can be worked out from its share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from math import inf

import numpy as np

from parity.diagnose.components.key_splits import splits
from parity.diagnose.components.seen_keys import (
    KeyChange,
    KeyRule,
    Keys,
    attended,
    capped,
    leaking,
    rules,
    sharper,
)
from parity.diagnose.components.wrong import CERTAIN, DOWN_TO_NOISE, Component, WrongRows, best_of

ROWS, STEPS = 24, 20
"""Wrong rows that are looked at, evenly chosen, and changes of the keys of each."""

LEAST, BUDGET, DEAREST = 4, 20_000_000_000, 50_000_000_000
"""Rows that are looked at where a row has many keys, the multiplications that one change of all of them may cost, and
those of one row from which keys are not looked at: each row takes up to 20 changes."""

FAINT = 48
"""Rows that are looked at where none is wrong alone."""

FEW = 3
"""Wrong keys of a row at the most, where no rule has them."""

LEADERS, HALVED, SOME = 3, 0.5, 0.8
"""The rules with which every other is tried, the share of what one leaves that two may leave, and the share of all the
error that the best one may leave for others to be tried with it."""

COARSE, HOPELESS = 2, 0.8
"""How often a number is made finer before it is given up, and the share of the error that it leaves then."""

LEAKS, SIZES, CAPS, FINER = np.geomspace(1e-4, 1.0, 25), np.geomspace(0.5, 2.0, 25), np.geomspace(1.0, 200.0, 25), 6
"""How often a key that is not seen may count, how large scores may be and where they may be capped, tried first, and
how often finer."""


def in_keys(wrong: WrongRows, weight: np.ndarray, rows: Sequence[Keys]) -> Component | None:
    """The rule by which keys are hidden, shown or exchanged that explains the wrong rows.

    Args:
        weight: of the output projection, float64 [wrong columns, N * D].
        rows: the keys of each wrong row.
    """
    each = rows[0].values[0].size * len(rows[0].values) * len(weight)  # multiplications that one change of a row costs
    if each > DEAREST:
        return None
    count = min(ROWS, max(LEAST, BUDGET // each))
    some = np.unique(np.linspace(0, len(rows) - 1, count).astype(int))
    few = _Explained(wrong, weight, rows, some)
    found = [_changed(rows[number], weight, wrong.error[number, wrong.columns], wrong.noise[number]) for number in some]
    ranked = sorted(rules(found), key=few.left)
    longest = max(int(row.seen.sum()) for row in few.rows)
    simple = min((*ranked[:1], *splits(longest), *_fitted(few)), key=few.left)
    promising = ranked if few.noisy < few.left(simple) < SOME * few.all else []
    pairs = (_together(*pair) for pair in product(promising[:LEADERS], promising) if pair[0] is not pair[1])
    best = min((simple, *pairs), key=few.left)
    says, rule = best if few.left(best) < HALVED * few.left(simple) else simple
    moved = _Explained(wrong, weight, rows, np.arange(len(rows))).moved(rule)
    told = wrong.judged(f"{wrong.where}{says}", moved, 2)
    return told if told is not None and told.whole else best_of((told, _one_by_one(wrong, few, found)))


def in_faint_keys(wrong: WrongRows, weight: np.ndarray, rows: Sequence[Keys]) -> Component | None:
    """The size of scores, or what is seen beside them, that is off by what shows over many rows and in none alone."""
    each = rows[0].values[0].size * len(rows[0].values) * len(weight)
    some = np.unique(np.linspace(0, len(rows) - 1, min(FAINT, len(rows), BUDGET // each)).astype(int))
    if not len(some):
        return None
    few = _Explained(wrong, weight, rows, some)
    best = min(_fitted(few, hopeless=inf), key=few.left)
    left = few.left(best)
    if few.all - left < CERTAIN:
        return None
    return Component(best[0], 1 - left / few.all, float(np.sqrt(left / few.error.size)), numbers=1)


def _one_by_one(wrong: WrongRows, few: _Explained, found: Sequence[KeyChange]) -> Component | None:
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


def _counted(what: str, found: Sequence[KeyChange], sign: int) -> str:
    """The keys that most rows lack, or see too."""
    numbers = [(one.keys, number) for one in found for number in np.flatnonzero(np.sign(one.by) == sign)]
    places = Counter(
        "one of zeros" if number == len(keys.seen) - 1 else str(keys.positions[number]) for keys, number in numbers
    )
    told = [f"{place} ({rows} rows)" for place, rows in places.most_common(4)]
    return f"{what} {', '.join(told)}; " if told else ""


class _Explained:
    """What rules leave of the error of some of the wrong rows."""

    def __init__(self, wrong: WrongRows, weight: np.ndarray, rows: Sequence[Keys], some: np.ndarray) -> None:
        self.rows, self.weight = [rows[number] for number in some], weight
        self.plain = [attended(one, one.seen.astype(float)) for one in self.rows]
        self.error, self.noise = wrong.error[some][:, wrong.columns], wrong.noise[some]

    @property
    def all(self) -> float:
        """What no rule leaves, in units of noise."""
        return float(((self.error / self.noise) ** 2).sum())

    @property
    def noisy(self) -> float:
        """What noise leaves."""
        return float(DOWN_TO_NOISE**2 * self.error.size)

    def moved(self, rule: KeyRule) -> np.ndarray:
        """What a rule changes, [rows, wrong columns]."""
        made = [attended(one, rule(one)) - before for one, before in zip(self.rows, self.plain, strict=True)]
        return np.asarray(np.stack(made) @ self.weight.T)

    def left(self, told: tuple[str, KeyRule]) -> float:
        """What is left, in units of noise."""
        return float((((self.error - self.moved(told[1])) / self.noise) ** 2).sum())


def _together(one: tuple[str, KeyRule], other: tuple[str, KeyRule]) -> tuple[str, KeyRule]:
    """Two rules at once."""
    first, second = one[1], other[1]
    return f"{one[0]}, and {other[0]}", lambda keys: np.maximum(first(keys) + second(keys) - keys.seen, 0.0)


def _fitted(few: _Explained, hopeless: float = HOPELESS) -> Iterator[tuple[str, KeyRule]]:
    """Rules with a number that is fitted: keys that are not seen and count a little, and scores of another size."""
    best = partial(_best, few, hopeless)
    yield best("keys that are not seen count {:.3g} times", leaking, LEAKS)
    yield best("the scores are {:.5g} times as large", partial(sharper, of_sinks=False), SIZES)
    yield best("the scores are softly capped at {:.4g}", partial(capped, of_sinks=False), CAPS)
    if few.rows[0].sinks is not None:
        yield best("scores and sinks are softly capped at {:.4g}", partial(capped, of_sinks=True), CAPS)
        yield best("scores and sinks are {:.5g} times as large", partial(sharper, of_sinks=True), SIZES)


def _best(
    few: _Explained, hopeless: float, says: str, rule: Callable[[float], KeyRule], tried: np.ndarray
) -> tuple[str, KeyRule]:
    """The factor that leaves least: the best of some, then of ever finer ones beside it."""
    best = 1.0
    for step in range(FINER):
        best = min(tried.tolist(), key=lambda factor: few.left(("", rule(factor))))
        if step == COARSE and few.left(("", rule(best))) > hopeless * few.all:
            break
        apart = (tried[1] / tried[0]).item()
        tried = np.geomspace(best / apart, best * apart, 9)
    return says.format(best), rule(best)


def _changed(keys: Keys, weight: np.ndarray, error: np.ndarray, noise: np.ndarray) -> KeyChange:
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
    return KeyChange(keys, times - begun)


def _once_more(keys: Keys, times: np.ndarray, tried: Sequence[tuple[int, int]]) -> np.ndarray:
    """What is mixed with each of some keys once more, or once less, [tried, N * D]."""
    largest = keys.scores.max(axis=1, keepdims=True)
    if keys.sinks is not None:
        largest = np.maximum(largest, keys.sinks[:, None])
    parts = np.exp(keys.scores - largest)
    total = parts @ times + (0.0 if keys.sinks is None else np.exp(keys.sinks - largest[:, 0]))
    mixed = ((parts * times)[:, None] @ keys.values)[:, 0]
    which, steps = (np.array(side) for side in zip(*tried, strict=True))
    one = parts[:, which] * steps
    sums = np.maximum(total[:, None] + one, 1e-300)
    made = (mixed[:, None] + one[..., None] * keys.values[:, which]) / sums[..., None]
    return np.asarray(made.transpose(1, 0, 2).reshape(len(tried), -1))
