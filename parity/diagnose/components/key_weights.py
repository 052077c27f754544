"""How much keys and sinks weigh: numbers of a softmax by head, score, distance, position or row, fitted to the error.

Each family of numbers moves a row's scores, or its sinks, linearly. What they move in what attention gives is known, so
that a few steps of least squares find them, and a family that does not explain the error is left after one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from parity.diagnose.components.seen_keys import Keys
from parity.diagnose.components.wrong import FULL, Component, WrongRows, best_of

ROWS, LEAST = 32, 4
"""Wrong rows that numbers of all rows are fitted to, evenly chosen; of fewer they are not told."""

BUDGET = 20_000_000_000
"""Multiplications that one step of one family may cost."""

STEPS, ENOUGH, HOPE = 12, 1e-4, 0.2
"""Steps at the most, the share of the error that one has to gain, and what the first steps together have to explain."""

LARGEST = 1.5
"""How far one step moves a number at the most: e to this power is how much more, or less, a key weighs."""

SURELY, NEAR, LISTED = 4.0, 0.1, 6
"""Standard errors by which a number is told, how alike are those that are said as one, and how many are listed."""

PAGE, DISTANCES = 8, 64
"""Keys of a page by position, and distances that have numbers of their own; those beyond share the last one's."""

Basis = tuple[np.ndarray, np.ndarray]
"""What each number moves by one: the scores, [C, N, T], and the sinks, [C, N]."""


@dataclass(frozen=True)
class Family:
    """Numbers of one kind.

    `basis` is of one row; `says` puts fitted numbers [C] and their standard errors [C] in words; where they are each
    row's `own`, numbers are [R, C].
    """

    basis: Callable[[Keys], Basis]
    says: Callable[[np.ndarray, np.ndarray], str]
    own: bool = False


def in_key_weights(wrong: WrongRows, weight: np.ndarray, rows: Sequence[Keys]) -> Component | None:
    """The family of numbers that explains the wrong rows.

    Args:
        weight: of the output projection, float64 [wrong columns, N * D].
        rows: the keys of each wrong row.
    """
    if len(rows) < LEAST or not rows[0].seen.any():
        return None
    return best_of(_of_family(wrong, weight, rows, family) for family in _families(rows))


def _of_family(wrong: WrongRows, weight: np.ndarray, rows: Sequence[Keys], family: Family) -> Component | None:
    error = wrong.error[:, wrong.columns]
    count = len(family.basis(rows[0])[0])
    if count * ROWS * rows[0].values[0].size * len(weight) > BUDGET:
        return None
    if family.own:
        fits = [
            _fitted(family, weight, [row], error[[at]], wrong.noise[[at]]) for at, row in enumerate(rows) if at < ROWS
        ]
        if not any(explained > HOPE for _, _, explained in fits):
            return None
        fits += [
            _fitted(family, weight, [row], error[[at]], wrong.noise[[at]]) for at, row in enumerate(rows) if at >= ROWS
        ]
        numbers, errors = (np.stack([fit[part] for fit in fits]) for part in (0, 1))
    else:
        some = np.unique(np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).astype(int))
        numbers, errors, explained = _fitted(family, weight, [rows[at] for at in some], error[some], wrong.noise[some])
        if explained < HOPE:
            return None
    every = numbers if family.own else [numbers] * len(rows)
    model = np.stack([_moved(family, weight, row, each) for row, each in zip(rows, every, strict=True)])
    return wrong.judged(f"{wrong.where}{family.says(numbers, errors)}", model, numbers.size)


def _given(keys: Keys, scores: np.ndarray, sinks: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares [N, T] of scores and of sinks [N], and what they mix [N, D]."""
    shown = np.where(keys.seen, scores, -np.inf)
    top = shown.max(axis=1) if sinks is None else np.maximum(shown.max(axis=1), sinks)
    parts = np.exp(shown - top[:, None])
    extra = np.zeros(len(parts)) if sinks is None else np.exp(sinks - top)
    total = parts.sum(axis=1) + extra
    shares = parts / total[:, None]
    return shares, extra / total, np.einsum("nt,ntd->nd", shares, keys.values)


def _at(family: Family, keys: Keys, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    of_scores, of_sinks = family.basis(keys)
    sinks = None if keys.sinks is None else keys.sinks + numbers @ of_sinks
    return _given(keys, keys.scores + np.tensordot(numbers, of_scores, 1), sinks)


def _moved(family: Family, weight: np.ndarray, keys: Keys, numbers: np.ndarray) -> np.ndarray:
    """What the numbers change of a row, [wrong columns]."""
    plain, given = (_at(family, keys, each)[2] for each in (0 * numbers, numbers))
    return np.asarray(weight @ (given - plain).ravel())


def _slopes(family: Family, weight: np.ndarray, keys: Keys, numbers: np.ndarray) -> np.ndarray:
    """By how much each number moves each wrong column, [C, wrong columns]."""
    of_scores, of_sinks = family.basis(keys)
    shares, of_sink, mixed = _at(family, keys, numbers)
    by_key = shares * of_scores
    made = np.einsum("cnt,ntd->cnd", by_key, keys.values)
    made -= (by_key.sum(axis=2) + of_sink * of_sinks)[..., None] * mixed
    return np.asarray(made.reshape(len(made), -1) @ weight.T)


def _fitted(
    family: Family, weight: np.ndarray, rows: Sequence[Keys], error: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Numbers [C] that explain the error best, their standard errors [C], and the share of it that they explain."""
    numbers = np.zeros(len(family.basis(rows[0])[0]))
    aim = (error / noise).ravel()
    total = left = float(aim @ aim)
    slopes = np.zeros((aim.size, len(numbers)))
    rest = aim
    for step in range(STEPS):
        slopes = np.stack([_slopes(family, weight, row, numbers) for row in rows], axis=1)
        slopes = (slopes / noise).reshape(len(numbers), -1).T
        moved = np.linalg.lstsq(slopes, rest, rcond=1e-6)[0]
        moved *= min(1.0, LARGEST / max(np.abs(moved).max(), 1e-300))
        tried = numbers + moved
        made = np.stack([_moved(family, weight, row, tried) for row in rows])
        rest_there = ((error - made) / noise).ravel()
        there = float(rest_there @ rest_there)
        if not there < left:
            break
        gained, numbers, rest, left = left - there, tried, rest_there, there
        if gained < ENOUGH * total or (step and 1 - left / total < HOPE):
            break
    spread = np.sqrt(np.maximum(np.diag(np.linalg.pinv(slopes.T @ slopes)), 0.0) * max(left / aim.size, 1.0))
    return numbers, spread, 1 - left / total


def _families(rows: Sequence[Keys]) -> list[Family]:
    """Each family that these rows can have; the sinks' where there are sinks."""
    keys = rows[0]
    heads, seen = len(keys.scores), [row.scores[:, row.seen] for row in rows[:: max(1, len(rows) // ROWS)]]
    size = float(max(np.abs(each).max() for each in seen)) or 1.0
    farthest = max(int(row.position - row.positions[row.seen].min()) for row in rows)
    last = max(int(row.positions[row.seen].max()) for row in rows)
    made = [
        Family(partial(_by_head, of=_scores), partial(_in_heads, what="scores", by="times as large", plain=1.0)),
        Family(partial(_bent, size=size), partial(_in_bends, size=size)),
        Family(partial(_by_head, of=_distances), partial(_in_heads, what="scores", by="more for each position back")),
        Family(partial(_by_distance, count=min(farthest, DISTANCES) + 1), _in_distances),
        Family(partial(_by_page, count=last // PAGE + 1), _in_pages),
        Family(_row_scores, partial(_in_rows, what="the scores are", power=False), own=True),
    ]
    if keys.sinks is not None:
        made += [
            Family(_every_sink, lambda numbers, _: f"every sink counts {np.exp(numbers[0]):.2g} times"),
            Family(_sink_sizes, lambda numbers, _: f"the sinks are {1 + numbers[0]:.3g} times as large"),
            Family(partial(_of_sinks, heads=heads), partial(_in_heads, what="sinks", by="higher")),
            Family(_every_sink, partial(_in_rows, what="every sink counts", power=True), own=True),
        ]
    return made


def _scores(keys: Keys) -> np.ndarray:
    return keys.scores


def _distances(keys: Keys) -> np.ndarray:
    return np.broadcast_to((keys.position - keys.positions) * keys.seen, keys.scores.shape)


def _by_head(keys: Keys, of: Callable[[Keys], np.ndarray]) -> Basis:
    heads = len(keys.scores)
    return np.eye(heads)[:, :, None] * of(keys), np.zeros((heads, heads))


def _row_scores(keys: Keys) -> Basis:
    return keys.scores[None], np.zeros((1, len(keys.scores)))


POWERS = (1, 2, 3, 4, 5)
"""Of a score: by a curve of these a score may be bent."""


def _bent(keys: Keys, size: float) -> Basis:
    return np.stack([(keys.scores / size) ** power for power in POWERS]), np.zeros((len(POWERS), len(keys.scores)))


def _classes(which: np.ndarray, count: int, heads: int) -> Basis:
    """Numbers of so many classes of keys, `which` [T] of them each key is of."""
    one = (np.arange(count)[:, None] == which).astype(float)
    return np.broadcast_to(one[:, None], (count, heads, len(which))), np.zeros((count, heads))


def _by_distance(keys: Keys, count: int) -> Basis:
    return _classes(np.clip(keys.position - keys.positions, -1, count - 1), count, len(keys.scores))


def _by_page(keys: Keys, count: int) -> Basis:
    return _classes(keys.positions // PAGE, count, len(keys.scores))


def _every_sink(keys: Keys) -> Basis:
    heads = len(keys.scores)
    return np.zeros((1, heads, keys.scores.shape[1])), np.ones((1, heads))


def _sink_sizes(keys: Keys) -> Basis:
    assert keys.sinks is not None
    return _every_sink(keys)[0], keys.sinks[None]


def _of_sinks(keys: Keys, heads: int) -> Basis:
    return np.zeros((heads, heads, keys.scores.shape[1])), np.eye(heads)


def _in_heads(numbers: np.ndarray, errors: np.ndarray, what: str, by: str, plain: float = 0.0) -> str:
    sure = np.flatnonzero(np.abs(numbers) > SURELY * errors)
    told = [f"{plain + numbers[head]:.2g} (head {head})" for head in sure]
    return f"other {what} by head: {_listed(told)} {by}"


def _listed(told: Sequence[str]) -> str:
    return ", ".join(told[:LISTED]) + (f" and {len(told) - LISTED} more" if len(told) > LISTED else "")


def _in_bends(numbers: np.ndarray, _: np.ndarray, size: float) -> str:
    there = np.array([-size, -size / 2, size / 2, size])
    bent = there + sum(number * (there / size) ** power for number, power in zip(numbers, POWERS, strict=True))
    told = ", ".join(f"{one:.3g} becomes {other:.3g}" for one, other in zip(there, bent, strict=True))
    return f"scores bent by a curve of their own: {told}"


def _runs(numbers: np.ndarray, errors: np.ndarray) -> list[tuple[int, int, float]]:
    """Neighbouring classes that are surely changed alike: (first, last, how many times a key of them counts)."""
    runs: list[tuple[int, int, float]] = []
    for at in np.flatnonzero((np.abs(numbers) > SURELY * errors) & (np.abs(numbers) > FULL)).tolist():
        times = float(np.exp(numbers[at]))
        first, last, before = runs[-1] if runs else (0, -2, 0.0)
        if last == at - 1 and abs(times - before) < NEAR * before:
            runs[-1] = (first, at, before)
        else:
            runs.append((at, at, times))
    return runs


def _in_distances(numbers: np.ndarray, errors: np.ndarray) -> str:
    runs = [(first, "on" if last == DISTANCES else last, times) for first, last, times in _runs(numbers, errors)]
    told = [f"{first}{'' if first == last else f' to {last}'}: {times:.2g} times" for first, last, times in runs]
    return f"keys so many positions back count otherwise ({_listed(told)})"


def _in_pages(numbers: np.ndarray, errors: np.ndarray) -> str:
    runs = _runs(numbers, errors)
    told = [f"{first * PAGE} to {last * PAGE + PAGE - 1}: {times:.2g} times" for first, last, times in runs]
    return f"keys at positions count otherwise ({_listed(told)})"


def _in_rows(numbers: np.ndarray, errors: np.ndarray, what: str, power: bool) -> str:
    """Each row's own number: as whole times where they nearly are."""
    times = np.exp(numbers[:, 0]) if power else 1 + numbers[:, 0]
    near = np.maximum(np.round(times), 0)
    if power and (np.abs(times - near) < np.maximum(NEAR, SURELY * errors[:, 0] * times)).mean() > 1 - NEAR:
        held = sorted(zip(*np.unique(near, return_counts=True), strict=True), key=lambda one: -one[1])
        told = [f"{int(one)} times ({count} rows)" for one, count in held]
        return f"{what} otherwise row by row: {_listed(told)}"
    low, high = np.percentile(times, (5, 95))
    by = "times" if power else "times as large"
    return f"{what} otherwise row by row: {low:.3g} to {high:.3g} {by}"
