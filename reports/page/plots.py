"""Where things stand on a scale: intervals in a table's row, a bar, a line over the nights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10


@dataclass(frozen=True)
class Scale:
    """Values `low` to `high` on `width` units of drawing, with room for a mark at both ends; `form` writes a tick."""

    low: float
    high: float
    width: float = 200.0
    margin: float = 8.0
    form: str = "{:g}"

    def __call__(self, value: float) -> float:
        """Where a value stands; beyond the ends it stands at the end."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.margin + share * (self.width - 2 * self.margin), 1)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Round values and where they stand."""
        return [(self(value), self.form.format(value)) for value in round_steps(self.low, self.high)]


def round_steps(low: float, high: float, most: int = 5) -> list[float]:
    """At most so many multiples of 1, 2 or 5 times a power of ten."""
    span = high - low
    if not isfinite(span) or span <= 0:
        return [low]
    power = 10.0 ** floor(log10(span / most))
    step = next(power * times for times in (1, 2, 5, 10, 20) if span / (power * times) <= most - 1 + 1e-9)
    first = -(-low // step)
    return [round(float((first + number) * step), 12) for number in range(int((high - first * step) / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Trend:
    """A line over the nights: drawn points, the band and the change, in units of a `width` x `height` drawing."""

    width: float
    height: float
    points: tuple[tuple[float, float], ...]
    band: tuple[float, float] | None
    change: float | None
    ticks: tuple[tuple[float, str], ...]

    @property
    def line(self) -> str:
        """The points of a polyline."""
        return " ".join(f"{x:g},{y:g}" for x, y in self.points)


def trend(
    values: Sequence[float],
    band: tuple[float, float] | None = None,
    change: int | None = None,
    width: float = 150.0,
    height: float = 28.0,
    left: float = 4.0,
    bottom: float = 4.0,
) -> Trend:
    """Place values, oldest first; `change` is the index of the first night behind a change point.

    A value that is not finite stands at the top; a flat line in the middle.
    """
    finite = [value for value in (*values, *(band or ())) if isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    pad = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    low, high, top = low - pad, high + pad, 4.0

    def y(value: float) -> float:
        return (
            round(top + (high - min(value, high)) / (high - low) * (height - top - bottom), 1)
            if isfinite(value)
            else top
        )

    step = (width - left - 5.0) / max(len(values) - 1, 1)
    x = [round(left + step * number if len(values) > 1 else width - 5.0, 1) for number in range(len(values))]
    return Trend(
        width=width,
        height=height,
        points=tuple(zip(x, map(y, values), strict=True)),
        band=(y(band[1]), max(y(band[0]) - y(band[1]), 1.0)) if band else None,
        change=None if change is None or not change < len(x) else round(x[change] - step / 2, 1) if change else x[0],
        ticks=tuple((y(value), f"{value:.4g}") for value in round_steps(low, high, 4)),
    )
