"""Weights that follow no rule: another one altogether, or each number off by chance.

Numbers drawn independently of what enters spread over all directions of it alike: the energy of x R^T along the k-th
left singular vector of x is S_k^2 times one constant, but for the chance of C outputs. Inputs that are off, or columns
that stand elsewhere than they should, do not spread so.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from parity.diagnose.components.wrong import NEARLY_ALL, Component, WrongRows

LEAST, WIDE = 8, 10.0
"""Directions that are needed, and how many times as large the energy of the first has to be as that of the last:
energies that are nearly alike tell nothing."""

ABOVE = 10.0
"""How far an energy has to be above what rounding leaves of it."""

CHANCE = 4.0
"""Deviations of an energy of C numbers, sqrt(2 / C) of it, that chance explains."""

LIKE = 0.2
"""The cosine of the device's rows with the golden's below which they are another weight's."""

ORDER = 0.01
"""How far the relations between rows may be from the golden's where its outputs stand in another order: rounding moves
them by a thousandth, C numbers drawn anew by 1 / sqrt(C)."""

SMALL = 0.1
"""The size of an error, as a share of the weight's, up to which it may be noise."""


def in_drawn_weights(wrong: WrongRows, x: np.ndarray, weight: np.ndarray) -> Component | None:
    """Another weight in this one's place, or this one with each number off by chance: numbers as many as the weight's,
    so that whatever else leaves nothing is said.

    Args:
        x: what enters, [R, D].
        weight: float64 [C, D], of the wrong columns.
    """
    golden, device = (side[:, wrong.columns] for side in (wrong.golden, wrong.device))
    left, size, _ = np.linalg.svd(x, full_matrices=False)
    rounding = (left**2 * wrong.noise**2).sum(axis=0) * golden.shape[1]
    another = abs((golden * device).sum()) < LIKE * np.linalg.norm(golden) * np.linalg.norm(device)
    share, each = _drawn(device if another else device - golden, left, size, rounding)
    each /= float(np.sqrt(np.mean(weight**2)))
    if share < NEARLY_ALL or (_reordered(golden, device) if another else each > SMALL):
        return None
    says = f"each number of the weight is off by chance, by {each:.2%} of its size: noise, or rounding"
    if another:
        says = f"another weight, {each:.3g} times as large, drawn at random or another checkpoint's"
    return Component(f"{wrong.where}{says}", share, None, numbers=weight.size)


def _reordered(golden: np.ndarray, device: np.ndarray) -> bool:
    """Whether the rows are related to one another as the golden's: outputs in another order keep that."""
    mine, true = (side @ side.T for side in (device, golden))
    return float(np.linalg.norm(mine / np.linalg.norm(mine) - true / np.linalg.norm(true))) < ORDER


def _drawn(rows: np.ndarray, left: np.ndarray, size: np.ndarray, rounding: np.ndarray) -> tuple[float, float]:
    """The share of the directions over which rows [R, C] spread as numbers drawn at random do, and the size of
    such a number; 0 where too few directions tell.

    Args:
        left: of what enters, [R, k]; `size` [k] its singular values.
        rounding: the energy of rounding in each direction, [k].
    """
    energy = ((left.T @ rows) ** 2).sum(axis=1)
    told = (energy > ABOVE * rounding) & (size > 0)
    if told.sum() < LEAST or size[told].max() ** 2 < WIDE * size[told].min() ** 2:
        return 0.0, 0.0
    logs = np.log(energy[told] / size[told] ** 2)
    middle = float(np.median(logs))
    share = float(np.mean(abs(logs - middle) < CHANCE * sqrt(2 / rows.shape[1])))
    return share, sqrt(np.exp(middle) / rows.shape[1])
