"""What attention's weights add up to, row by row: heads that are right but for a factor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parity.compare.units import RED
from parity.diagnose.components.wrong import Component, WrongRows

MOSTLY = 5, 95
"""Percentiles between which the factors are told: a head that hardly says anything has any."""


def in_sums(wrong: WrongRows, heads: Sequence[tuple[str, np.ndarray]]) -> Component | None:
    """Each row's own factor of each head: the keys' weights among each other are right, and their sum is not.

    Args:
        heads: (name, what it adds to the wrong columns of each wrong row [R, C]).
    """
    if len(heads) < 2:
        return None
    factors = _fitted(wrong, [part for _, part in heads])
    made = [each[:, None] * part for each, (_, part) in zip(factors.T, heads, strict=True)]
    those = [head for head, part in enumerate(made) if np.sqrt(np.mean((part / wrong.noise) ** 2)) > RED]
    if not those:
        return None
    low, high = np.percentile(1 + factors[:, those], MOSTLY)
    which = "every head" if len(those) == len(heads) else ", ".join(heads[head][0] for head in those)
    sums = f"other sums, {low:.3g} to {high:.3g} of theirs by row (denominator, sinks)"
    says = f"{wrong.where}{which}: the keys' weights add up to {sums}"
    return wrong.judged(says, np.sum(made, axis=0), factors.size)


def _fitted(wrong: WrongRows, parts: Sequence[np.ndarray]) -> np.ndarray:
    """The factor of each part's error in each row, [R, parts], by least squares."""
    error = wrong.error[:, wrong.columns]
    stacked = np.stack(parts, axis=2)
    return np.stack([np.linalg.lstsq(held, row, rcond=None)[0] for held, row in zip(stacked, error, strict=True)])
