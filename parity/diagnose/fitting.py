"""The value of a parameter that leaves least: a scan, golden section, and parabolas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from typing import Any

import numpy as np

from parity.diagnose.hypothesis import FitRange
from parity.golden.checkpoints import Checkpoint, Model

GRID, STEPS, VERTICES = 9, 7, 5
"""Points of the first scan of a parameter, golden-section steps behind it (an interval of GRID shrinks to
2 / 8 * 0.618^7, 0.9 % of itself), and vertices of parabolas behind those: so near its minimum the squared error is one,
and a constant that is off by 0.03 % is found as well."""

BESIDE_CLEAN = 1e-3
"""How far from the value that changes nothing a parameter is tried, as a share of its range."""


def constant(name: str, model: Model) -> Any:
    """What a golden records of its own checkpoints under `target.KEY` or `drafter.KEY`; None where it does not."""
    side, _, key = name.partition(".")
    read: dict[str, Checkpoint] = {"target": model.target, "drafter": model.drafter}
    return read[side].constants.get(key) if side in read else None


def clean_value(fit: FitRange, model: Model) -> float | None:
    """The value of a parameter at which nothing is wrong with these checkpoints; None where it is not known.

    A golden's own record goes first; one outside the parameter's range is no place to search at.
    """
    recorded = constant(fit.constant, model)
    clean = fit.clean if isinstance(recorded, bool) or not isinstance(recorded, int | float) else float(recorded)
    return clean if clean is not None and fit.low <= clean <= fit.high else None


class Curve:
    """What each value of a parameter leaves, on the scale that it is fitted on; no value is asked for twice.

    Args:
        left: what a value leaves.

    Attributes:
        low, high: the ends of the range, on that scale.
        seen: the points asked for, in order.
    """

    def __init__(self, fit: FitRange, left: Callable[[float], float]) -> None:
        self._fit, self._left = fit, left
        self.low, self.high = self.at(fit.low), self.at(fit.high)
        self.seen: list[float] = []
        self._made: dict[float, float] = {}

    def at(self, value: float) -> float:
        """Where a value stands on the scale."""
        return log(value) if self._fit.log else float(value)

    def value(self, x: float) -> float:
        """What stands at a place of the scale."""
        value = exp(x) if self._fit.log else float(x)
        return round(value) if self._fit.whole else value

    def __call__(self, x: float) -> float:
        value = self.value(x)
        self.seen.append(x)
        if value not in self._made:
            self._made[value] = self._left(value)
        return self._made[value]

    @property
    def least(self) -> float:
        """The least of what was left so far."""
        return min(self._made.values())

    @property
    def best(self) -> float:
        """The value that left it."""
        return min(self._made, key=self._made.__getitem__)

    def scan(self, low: float, high: float) -> tuple[float, float]:
        """Ask at GRID points from end to end; the neighbours of the best one."""
        points = [low + (high - low) * i / (GRID - 1) for i in range(GRID)]
        best = min(range(GRID), key=lambda i: self(points[i]))
        return points[max(best - 1, 0)], points[min(best + 1, GRID - 1)]


def golden_section(error: Callable[[float], float], low: float, high: float, steps: int) -> None:
    """Narrow a minimum down; `error` keeps what it has seen."""
    ratio = (5**0.5 - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    for _ in range(steps):
        if error(a) < error(b):
            high, b, a = b, a, b - ratio * (b - low)
        else:
            low, a, b = a, b, a + ratio * (high - a)


def beside_clean(error: Callable[[float], float], clean: float, low: float, high: float) -> None:
    """Look for a minimum close to the value that changes nothing, whose error is one: a scan steps over it.

    Two points beside it give a parabola; it is followed where its vertex leaves less than half of the error.
    """
    step = (high - low) * BESIDE_CLEAN

    def known(x: float) -> float:
        return 1.0 if x == clean else error(x)

    points = [clean - step, clean, clean + step]
    tried: list[float] = []

    def noted(x: float) -> float:
        tried.append(x)
        return known(x)

    parabolas(noted, low, high, points, 1)
    if min(known(x) for x in tried) < 0.5:
        parabolas(known, low, high, tried, VERTICES)


def parabolas(error: Callable[[float], float], low: float, high: float, seen: Sequence[float], steps: int) -> None:
    """Follow the vertices of parabolas through the squared errors of the three best points, inside [low, high]."""
    points = sorted((error(x) ** 2, x) for x in set(seen))[:3]
    for _ in range(steps):
        if len(points) < 3 or not np.isfinite([y for y, _ in points]).all():
            return
        (y0, x0), (y1, x1), (y2, x2) = points
        slopes = (x0 - x1) * (y0 - y2), (x0 - x2) * (y0 - y1)
        if slopes[0] == slopes[1]:
            return
        vertex = x0 - 0.5 * ((x0 - x1) * slopes[0] - (x0 - x2) * slopes[1]) / (slopes[0] - slopes[1])
        if not low <= vertex <= high or any(vertex == x for _, x in points):
            return
        points = sorted([*points, (error(vertex) ** 2, vertex)])[:3]
