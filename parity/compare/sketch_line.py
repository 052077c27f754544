"""Scale and bias of a device of which sketches are kept: what exact norms and sums, and an estimated error, tell."""

from __future__ import annotations

from math import hypot, sqrt

import numpy as np

from parity.compare.statistics import LineFit, beyond, clustered
from parity.metrics import sums as at
from parity.policy import Row

Interval = tuple[float, float]


def directed(device: np.ndarray, floor: np.ndarray, row: Row, width: int, pooled: Interval) -> dict[str, Interval]:
    """Scale and bias, as `parity.compare.numbers` has them.

    The error's product with the golden follows from the norms and from its square, so that the interval of the square
    moves it, to second order. What columns share is not known: their part of the standard errors is anything up to
    that of errors which are alike in a column.
    """
    found: dict[str, list[float]] = {"scale": [], "bias": []}
    for factor in (1.0, *pooled):
        table = _at_square(device, factor**2)
        for columns in (False, True):
            line, noise = (line_fit(one, width, columns) for one in (table, floor))
            plain = row.judge == "relative"
            figures = (abs(line.scale), abs(line.bias)) if plain else beyond(line, noise)
            for name, figure in zip(found, figures, strict=True):
                found[name].append(figure)
    return {name: (min(figures), max(figures)) for name, figures in found.items()}


def _at_square(table: np.ndarray, factor: float) -> np.ndarray:
    """The table if every error's square were so many times its estimate; the norms stay what they are."""
    moved = table.copy()
    moved[:, at.EE] *= factor
    moved[:, at.GE] -= (moved[:, at.EE] - table[:, at.EE]) / 2
    return moved


def line_fit(table: np.ndarray, width: int, columns: bool) -> LineFit:
    """As `parity.compare.statistics.fit`, from sums of rows of `width` numbers.

    Args:
        columns: count the columns' part of the standard errors as that of errors alike in a column; as none otherwise.
    """
    square = table[:, at.GG] / width
    weight = np.divide(1.0, square, out=np.zeros_like(square), where=square > 0)
    whole = np.isfinite(table[:, at.EE])
    weight = np.where(whole, weight, 0.0)
    root, table = np.sqrt(weight), np.where(whole[:, None], table, 0.0)
    x, e, xx, xe, ee = (
        root * table[:, at.G],
        root * table[:, at.E],
        weight * table[:, at.GG],
        weight * table[:, at.GE],
        weight * table[:, at.EE],
    )
    count = len(table) * width
    mean, error = x.sum() / count, e.sum() / count
    spread = xx.sum() - count * mean * mean
    scale = (xe.sum() - count * mean * error) / spread if spread > 1e-6 * count else 0.0
    bias = error - scale * mean
    noise = sqrt(max(float(ee.sum()), 0.0) / count)
    left = e - scale * x - width * bias
    slope = (xe - scale * xx - bias * x - mean * left) / max(spread, 1e-6 * count)
    # What the line does not explain: all that columns can share.
    rest = ee - 2 * scale * xe - 2 * bias * e + scale**2 * xx + 2 * scale * bias * x + width * bias**2
    shared = sqrt(max(float(rest.sum()), 0.0) / count / width) if columns else 0.0
    errors = [hypot(clustered(scores, noise), shared) for scores in (slope, left / count - mean * slope)]
    return LineFit(float(scale), float(bias), errors[0], errors[1], noise)
