"""How figures are written and coloured: the same everywhere on the page."""

from __future__ import annotations

from itertools import pairwise
from math import isfinite, isnan

from parity.compare.report import DISPUTED, FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, WARN

MARKS = {
    PASS: "pass",
    WARN: "warn",
    FAIL: "fail",
    INCONCLUSIVE: "inconclusive",
    DISPUTED: "disputed",
    NOT_JUDGED: "unjudged",
}
"""Verdict to the shape that stands beside its word."""

EDGES = {
    # 1.5 and 3 are where the default policy stops passing and starts failing; 1 is the reference's own noise.
    "x noise": (0.5, 1.0, 1.5, 3.0, 10.0, 100.0),
    # Of a float32 run: 1e-5 is the default policy's bound on a stage.
    "relative L2": (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
}
"""Upper edges of the colour levels by unit; what is beyond the last edge has the last level."""
UNITS = {"noise": "x noise", "relative": "relative L2"}
"""Judge of a stage to the unit of its error."""
NOT_FINITE = "hx"


def level(value: float, unit: str) -> str:
    """Class of the colour: `h0` to `h6`, `hx` where the value is not finite."""
    if not isfinite(value):
        return NOT_FINITE
    return f"h{sum(value > edge for edge in EDGES[unit])}"


def legend(unit: str) -> list[tuple[str, str]]:
    """Class and label of every level, in order."""
    edges = [figure(edge) for edge in EDGES[unit]]
    between = [f"{low} to {high}" for low, high in pairwise(edges)]
    labels = [f"up to {edges[0]}", *between, f"beyond {edges[-1]}", "not finite"]
    return [(f"h{number}" if number < len(labels) - 1 else NOT_FINITE, label) for number, label in enumerate(labels)]


def figure(value: float | None) -> str:
    """Three digits; very small and very large ones with an exponent."""
    if value is None or isnan(value):
        return "–" if value is None else "not a number"
    if not isfinite(value):
        return "infinite"
    if value == 0 or 0.01 <= abs(value) < 100_000:
        digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
        return _minus(f"{value:.{digits}f}")
    mantissa, exponent = f"{value:.1e}".split("e")
    return _minus(f"{mantissa}e{int(exponent)}")


def percent(value: float) -> str:
    """A share, without decimals."""
    return _minus(f"{value:.0%}")


def signed(value: float) -> str:
    """A relative difference with its sign."""
    return _minus(f"{value:+.1%}")


def seconds(value: float) -> str:
    """A duration in the unit that suits it."""
    if value < 0.1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 100 else f"{value / 60:.1f} min"


def count(number: int, one: str, many: str = "") -> str:
    """`1 cell`, `12 cells`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def number(value: float | str | None) -> float | None:
    """A figure as a result keeps it: infinities are words there."""
    return None if value is None else float(value)


def _minus(text: str) -> str:
    return text.replace("-", "−") if text.startswith("-") else text
