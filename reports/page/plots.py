"""What stands where on a scale: a line over the nights, acceptance with its 95 % limits, bars of speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10

from parity.gates.acceptance_interval import mean_limits, wilson_limits
from parity.nightly.records import CellResult, PositionAcceptance, Speed


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
class TrendDrawing:
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


@dataclass(frozen=True)
class DrawingSize:
    """In units of the drawing; `left` and `bottom` are room for the axes."""

    width: float = 150.0
    height: float = 28.0
    left: float = 4.0
    bottom: float = 4.0


SMALL = DrawingSize()


def trend(
    values: Sequence[float],
    band: tuple[float, float] | None = None,
    change: int | None = None,
    size: DrawingSize = SMALL,
) -> TrendDrawing:
    """Place values, oldest first; `change` is the index of the first night behind a change point.

    A value that is not finite stands at the top; a flat line in the middle.
    """
    finite = [value for value in (*values, *(band or ())) if isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    pad = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    low, high, top = low - pad, high + pad, 4.0

    def y(value: float) -> float:
        share = (high - min(value, high)) / (high - low)
        return round(top + share * (size.height - top - size.bottom), 1) if isfinite(value) else top

    step = (size.width - size.left - 5.0) / max(len(values) - 1, 1)
    x = [round(size.left + step * number if len(values) > 1 else size.width - 5.0, 1) for number in range(len(values))]
    return TrendDrawing(
        width=size.width,
        height=size.height,
        points=tuple(zip(x, map(y, values), strict=True)),
        band=(y(band[1]), max(y(band[0]) - y(band[1]), 1.0)) if band else None,
        change=None if change is None or not change < len(x) else round(x[change] - step / 2, 1) if change else x[0],
        ticks=tuple((y(value), f"{value:.4g}") for value in round_steps(low, high, 4)),
    )


@dataclass(frozen=True)
class AcceptanceSide:
    """A value with its limits, and where they stand on the scale."""

    value: float
    low: float
    high: float
    x: float
    from_x: float
    to_x: float


@dataclass(frozen=True)
class AcceptanceRow:
    """One draft or prompt."""

    name: str
    rounds: int
    device: AcceptanceSide
    reference: AcceptanceSide


@dataclass(frozen=True)
class Forest:
    """Rows on one scale."""

    scale: Scale
    rows: tuple[AcceptanceRow, ...]


def by_draft(result: CellResult) -> Forest | None:
    """The rate at which draft i of K is accepted, of all rounds; limits by Wilson."""
    if not result.positions:
        return None
    scale = Scale(0.0, 1.0, margin=16, form="{:.0%}")
    rows = tuple(
        AcceptanceRow(str(position.draft), position.rounds, *_rates(scale, position)) for position in result.positions
    )
    return Forest(scale, rows)


def _rates(scale: Scale, position: PositionAcceptance) -> tuple[AcceptanceSide, AcceptanceSide]:
    own, expected = position.accepted, position.reference_accepted
    device = _side(scale, own / max(position.rounds, 1), (position.low, position.high))
    limits = wilson_limits(expected, position.reference_rounds)
    return device, _side(scale, expected / max(position.reference_rounds, 1), limits)


def by_prompt(result: CellResult) -> Forest | None:
    """Every prompt's acceptance length; limits by resampling its rounds."""
    if not result.prompts:
        return None
    scale = Scale(1.0, float(max(result.cell.axes.k + 1, 2)))
    rows = tuple(
        AcceptanceRow(prompt.prompt, len(prompt.lengths), _mean(scale, prompt.lengths), _mean(scale, prompt.reference))
        for prompt in result.prompts
    )
    return Forest(scale, rows)


def acceptance_lengths(result: CellResult) -> tuple[float, float] | None:
    """Acceptance length of device and reference over all prompts; None where nothing was generated."""
    device = [length for prompt in result.prompts for length in prompt.lengths]
    reference = [length for prompt in result.prompts for length in prompt.reference]
    if not device or not reference:
        return None
    return sum(device) / len(device), sum(reference) / len(reference)


def _mean(scale: Scale, rounds: Sequence[int]) -> AcceptanceSide:
    return _side(scale, sum(rounds) / max(len(rounds), 1), mean_limits(rounds, scale.low, scale.high))


def _side(scale: Scale, value: float, limits: tuple[float, float]) -> AcceptanceSide:
    low, high = limits
    return AcceptanceSide(value, low, high, scale(value), scale(low), scale(high))


@dataclass(frozen=True)
class Bar:
    """One ratio; `x` is where its bar ends."""

    name: str
    value: float
    x: float


@dataclass(frozen=True)
class Bars:
    """Ratios on one scale from 0; `one` is where 1x stands."""

    scale: Scale
    one: float
    rows: tuple[Bar, ...]
    kept: float


def speed_bars(speed: Speed | None) -> Bars | None:
    """The ratios of a cell; `kept` is the measured share of what the model promises."""
    if speed is None:
        return None
    named = {
        "over plain decoding, measured": speed.over_plain,
        "over plain decoding, by the model": speed.model_over_plain,
        "over the baseline": speed.over_baseline,
    }
    scale = Scale(0.0, max(1.25, *named.values()) * 1.05)
    rows = tuple(Bar(name, value, scale(value)) for name, value in named.items())
    return Bars(scale, scale(1.0), rows, speed.over_plain / speed.model_over_plain if speed.model_over_plain else 0.0)
