"""The least half width of each judged figure's band: what a harmless change of rounding moves.

A CPU repeats bit for bit, so that its nights have no noise at all, and the band of nights alone would have no width. But a
commit that sums in another order is no regression. `benchmarks/harmless.py` measures how far each figure then moves, over
25 clean devices and all stages; these are one and a half times the largest move, rounded up: the devices are few, and so is
what they were tried on. Figures without an entry are kept in history and not judged: they say once more what these say.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Width:
    """The larger of an absolute half width and a share of the band's centre."""

    absolute: float = 0.0
    share: float = 0.0


_NOISE, _FITS, _PLAIN = "x noise", "standard errors", "relative"

HALF_WIDTHS: dict[str, dict[tuple[str, str], Width]] = {
    "l2": {("local", _NOISE): Width(0.01), ("chained", _NOISE): Width(0.1)},
    "worst_row": {("local", _NOISE): Width(0.1), ("chained", _NOISE): Width(1.0)},
    "largest": {("local", _NOISE): Width(0.1), ("chained", _NOISE): Width(1.8)},
    "scale": {("local", _FITS): Width(0.05), ("chained", _FITS): Width(3.6)},
    "bias": {("local", _FITS): Width(0.05), ("chained", _FITS): Width(2.0)},
    "unlike": {("local", "share"): Width(1.3e-4), ("chained", "share"): Width(1.3e-4)},
    "noise": {("local", "share"): Width(0.006), ("chained", "share"): Width(0.006)},
    "bug": {},
    "regret_mean": {("chained", "logits"): Width(1e-3)},
    "kl_mean": {("chained", "nats"): Width(1e-4, 0.5)},
    "relative": {("chained", _PLAIN): Width(0.005)},
    "relative_forced": {("chained", _PLAIN): Width(0.005)},
    "over_baseline": {("", "ratio"): Width(0.0, 0.1)},
}
"""By metric, then (mode, unit)."""
