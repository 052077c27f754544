"""How much keys and sinks weigh: numbers of a softmax by head, score, distance, position or row, fitted to the error.

Each family of numbers moves a row's scores, or its sinks, linearly. What they move in what attention gives is known, so
that a few steps of least squares find them, and a family that does not explain the error is left after one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parity.diagnose.components.key_families import ROWS, Family, families
from parity.diagnose.components.seen_keys import Keys
from parity.diagnose.components.wrong import Component, WrongRows, best_of

LEAST = 4
"""Wrong rows of which numbers are told; they are fitted to ROWS of them, evenly chosen."""

BUDGET = 20_000_000_000
"""Multiplications that one step of one family may cost."""

STEPS, ENOUGH, HOPE = 12, 1e-4, 0.2
"""Steps at the most, the share of the error that one has to gain, and what the first steps together have to explain."""

LARGEST = 1.5
"""How far one step moves a number at the most: e to this power is how much more, or less, a key weighs."""


def in_key_weights(wrong: WrongRows, weight: np.ndarray, rows: Sequence[Keys]) -> Component | None:
    """The family of numbers that explains the wrong rows.

    Args:
        weight: of the output projection, float64 [wrong columns, N * D].
        rows: the keys of each wrong row.
    """
    if len(rows) < LEAST or not all(row.seen.any() for row in rows):
        return None
    affordable = (one for one in families(rows) if _cost(one, rows[0], weight) <= BUDGET)
    return best_of(_of_family(wrong, weight, rows, family) for family in affordable)


def _cost(family: Family, keys: Keys, weight: np.ndarray) -> int:
    return int(len(family.basis(keys)[0]) * ROWS * keys.values[0].size * len(weight))


def _of_family(wrong: WrongRows, weight: np.ndarray, rows: Sequence[Keys], family: Family) -> Component | None:
    fitted = (_own if family.own else _alike)(wrong, weight, rows, family)
    if fitted is None:
        return None
    numbers, errors = fitted
    every = numbers if family.own else [numbers] * len(rows)
    model = np.stack([_moved(family, weight, row, each) for row, each in zip(rows, every, strict=True)])
    return wrong.judged(f"{wrong.where}{family.says(numbers, errors)}", model, numbers.size)


Fitted = tuple[np.ndarray, np.ndarray]
"""Numbers and their standard errors, [C]; [R, C] where each row has its own."""


def _alike(wrong: WrongRows, weight: np.ndarray, rows: Sequence[Keys], family: Family) -> Fitted | None:
    """Numbers that all rows share; None where they do not explain the error."""
    some = np.unique(np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).astype(int))
    error = wrong.error[some][:, wrong.columns]
    numbers, errors, explained = _fitted(family, weight, [rows[at] for at in some], error, wrong.noise[some])
    return (numbers, errors) if explained >= HOPE else None


def _own(wrong: WrongRows, weight: np.ndarray, rows: Sequence[Keys], family: Family) -> Fitted | None:
    """Each row's own numbers; None where they do not explain the error of any of the first rows."""
    error, fits = wrong.error[:, wrong.columns], []
    for at, row in enumerate(rows):
        fits.append(_fitted(family, weight, [row], error[[at]], wrong.noise[[at]]))
        if at == ROWS - 1 and max(explained for _, _, explained in fits) < HOPE:
            return None
    return np.stack([numbers for numbers, _, _ in fits]), np.stack([errors for _, errors, _ in fits])


def given(keys: Keys, scores: np.ndarray, sinks: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares [N, T] of scores and of sinks [N], and what they mix [N, D]."""
    shown = np.where(keys.seen, scores, -np.inf)
    top = shown.max(axis=1) if sinks is None else np.maximum(shown.max(axis=1), sinks)
    parts = np.exp(shown - top[:, None])
    extra = np.zeros(len(parts)) if sinks is None else np.exp(sinks - top)
    total = parts.sum(axis=1) + extra
    shares = parts / total[:, None]
    return shares, extra / total, (shares[:, None] @ keys.values)[:, 0]


def _at(family: Family, keys: Keys, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    of_scores, of_sinks = family.basis(keys)
    sinks = None if keys.sinks is None else keys.sinks + numbers @ of_sinks
    return given(keys, keys.scores + np.tensordot(numbers, of_scores, 1), sinks)


def _moved(family: Family, weight: np.ndarray, keys: Keys, numbers: np.ndarray) -> np.ndarray:
    """What the numbers change of a row, [wrong columns]."""
    plain, given = (_at(family, keys, each)[2] for each in (0 * numbers, numbers))
    return np.asarray(weight @ (given - plain).ravel())


def _slopes(family: Family, weight: np.ndarray, keys: Keys, numbers: np.ndarray) -> np.ndarray:
    """By how much each number moves each wrong column, [C, wrong columns]."""
    of_scores, of_sinks = family.basis(keys)
    shares, of_sink, mixed = _at(family, keys, numbers)
    by_key = shares * of_scores
    made = (by_key.transpose(1, 0, 2) @ keys.values).transpose(1, 0, 2)
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
