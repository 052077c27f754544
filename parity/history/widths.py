"""The least half width of each judged figure's band: what a harmless change of rounding moves.

A CPU repeats bit for bit, so that its nights have no noise at all, and the band of nights alone would have no width. But a
commit that sums in another order is no regression. `benchmarks/harmless.py` measures how far each figure then moves, over
all stages, 25 clean devices on four prompts and two on 24; these are one and a half times the largest move, rounded up: the devices are few, and so is
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


def _plain(most: float) -> dict[tuple[str, str], Width]:
    """Of a float32 device, which knows no noise."""
    return {(mode, _PLAIN): Width(most) for mode in ("local", "chained")}


HALF_WIDTHS: dict[str, dict[tuple[str, str], Width]] = {
    "l2": {("local", _NOISE): Width(0.001), ("chained", _NOISE): Width(0.09), **_plain(5e-7)},
    "worst_row": {("local", _NOISE): Width(0.3), ("chained", _NOISE): Width(1.0), **_plain(3.2e-6)},
    "largest": {("local", _NOISE): Width(0.7), ("chained", _NOISE): Width(1.8), **_plain(8.5e-6)},
    "scale": {("local", _FITS): Width(0.04), ("chained", _FITS): Width(3.6), **_plain(1.5e-7)},
    "bias": {("local", _FITS): Width(0.05), ("chained", _FITS): Width(2.0), **_plain(1.2e-7)},
    "unlike": {("local", "share"): Width(1.3e-4)},
    "noise": {("local", "share"): Width(0.006), ("chained", "share"): Width(0.006)},
    "bug": {},
    # One more flip within the noise: half a logit over 500 rows. Met: 0.00013, on 24 prompts.
    "regret_mean": {("chained", "logits"): Width(1e-3)},
    "kl_mean": {("chained", "nats"): Width(1e-5, 0.55)},
    # Half of the figure's own interval where that is wider, as it is unless every text is the reference's, which is no proof
    # that a tie could not part them: a fifth of what the gate allows.
    "relative": {("chained", _PLAIN): Width(0.01)},
    "relative_forced": {("chained", _PLAIN): Width(0.01)},
    # Medians of five repeats on a busy machine: benchmarks/README.md has their spread, least to most, within 8 %.
    "over_baseline": {("", "ratio"): Width(0.0, 0.1)},
}
"""By metric, then (mode, unit)."""
