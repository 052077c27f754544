"""Speed against the model: what was measured, and what acceptance and the times of the passes promise."""

from __future__ import annotations

from dataclasses import dataclass

from parity.nightly.records import Speed
from parity.reports.page.plots import Scale


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


def bars(speed: Speed | None) -> Bars | None:
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
