"""An error that a token brings along, the same wherever it stands: its embedding, behind what is linear in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parity.compare.entered import entered_tokens
from parity.diagnose.components.elements import vague
from parity.diagnose.components.parts import INSIDE
from parity.diagnose.components.wrong import NEARLY_ALL, Component, WrongRows
from parity.golden.views import DumpView

FEW, MOST = 3, 0.5
"""Tokens that have to stand at several places, and the share of the wrong rows that are theirs at the least."""


def in_tokens(wrong: WrongRows, golden: DumpView) -> Component | None:
    """One error for each token, of those that stand at several places; None where the golden's rows are the token's
    alone: there any error would be."""
    tokens = entered_tokens(golden, wrong.rows)
    _, place, count = np.unique(tokens, return_inverse=True, return_counts=True)
    some = (count[place] > 1) & (tokens >= 0)
    numbered = np.unique(place[some], return_inverse=True)[1]
    if numbered.max(initial=-1) + 1 < FEW or some.mean() < MOST or _shared(wrong.golden[some], numbered) > NEARLY_ALL:
        return None
    there = replace(
        wrong,
        rows=wrong.rows.take(some),
        golden=wrong.golden[some],
        device=wrong.device[some],
        noise=wrong.noise[some],
        numbers=wrong.numbers[some],
    )
    model = _means(there.error[:, wrong.columns], numbered)
    says = "each token has an error of its own, the same wherever it stands: its embedding"
    return vague(there.judged(f"{wrong.where}{says}", model, int(numbered.max() + 1) * model.shape[1], INSIDE))


def _means(rows: np.ndarray, numbered: np.ndarray) -> np.ndarray:
    """Each row [R, C] as the mean of those of its number [R]."""
    sums = np.zeros((numbered.max() + 1, rows.shape[1]))
    np.add.at(sums, numbered, rows)
    means: np.ndarray = (sums / np.bincount(numbered)[:, None])[numbered]
    return means


def _shared(rows: np.ndarray, numbered: np.ndarray) -> float:
    """How much of what rows differ by is the same in all rows of a number."""
    apart = rows - rows.mean(axis=0)
    return 1 - float(((rows - _means(rows, numbered)) ** 2).sum() / max((apart**2).sum(), 1e-300))
