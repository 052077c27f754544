"""The golden's bfloat16 noise at a stage, for rows that are not the golden's own."""

from __future__ import annotations

import numpy as np

from parity.compare.floor import HALF_ULP, NOISY, WIDEST
from parity.compare.rows import stage_rows
from parity.errors import Inconclusive
from parity.golden.store import Dump
from parity.metrics import measure


class Noise:
    """Chained bfloat16 floors of a golden, measured once for each stage.

    A device's own rows have no floor of their own: all of them together are held against the pooled floor
    of the golden's rows, a single one against the noisy tenth's (see `parity.compare.floor`).
    """

    def __init__(self, golden: Dump):
        self.golden = golden
        self._floors: dict[str, tuple[float, float, float]] = {}

    def pooled(self, stage: str) -> float:
        """Relative L2 of the floor over all rows."""
        return self._floor(stage)[0]

    def noisy(self, stage: str) -> float:
        """Relative L2 that one row in ten exceeds."""
        return self._floor(stage)[1]

    def crest(self, stage: str) -> float:
        """The typical row's largest error over its RMS error."""
        return self._floor(stage)[2]

    def rms(self, stage: str, scores: np.ndarray) -> np.ndarray:
        """RMS noise [R] to expect in rows of scores [R, X]."""
        return self.noisy(stage) * np.sqrt((scores.astype(np.float64) ** 2).mean(axis=1))

    def _floor(self, stage: str) -> tuple[float, float, float]:
        if stage not in self._floors:
            self._floors[stage] = _measured(self.golden, stage)
        return self._floors[stage]


def _measured(golden: Dump, stage: str) -> tuple[float, float, float]:
    rows = stage_rows(golden, golden, golden.declared[stage], device="float32", mode="chained")
    if rows is None:
        raise Inconclusive(f"{golden.folder} holds no float32 and bfloat16 {stage}: its noise is unknown")
    found = measure(rows.golden, rows.floor)
    relative = found.rows.rel_l2
    if found.count < found.size:
        raise Inconclusive(f"{golden.folder} has NaN or Inf in {stage} or its noise floor: its noise is unknown")
    if found.rel_l2 > WIDEST:
        raise Inconclusive(f"the noise floor of {stage} is {found.rel_l2:.0%} of the golden: it bounds nothing")
    rms = relative * np.sqrt(found.rows.golden_sq / rows.golden.shape[1])
    crest = float(np.median(found.rows.max_abs[rms > 0] / rms[rms > 0])) if (rms > 0).any() else 1.0
    pooled = float(np.sqrt((relative**2).mean()))
    return max(pooled, HALF_ULP), max(float(np.quantile(relative, NOISY)), HALF_ULP), crest
