"""What quantised caches mean to gates that compare a device with itself.

The same row in a pass of other rows is made of other sums, and a value of it that is tied between two numbers of the
format may be kept as the other one. Nothing says the device to which side: what reads it differs by more than float32's
rounding, as far as the golden's own floors, which have such flips in them, do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parity.gates.context import NoiseFloors
from parity.gates.rollback.baseline import FLOAT32_BOUND
from parity.gates.rollback.sameness import changed_row
from parity.grid import Grid, grids


@dataclass(frozen=True)
class KeptRows:
    """Of a golden's case: how far a float32 row may be from the same one elsewhere, and what a cache keeps of a row."""

    noise: NoiseFloors

    def bound(self, stage: str) -> float:
        """Largest relative error of a float32 row."""
        return self.noise.flip_bound(stage) or FLOAT32_BOUND

    def changed(self, stage: str, computed: np.ndarray, now: np.ndarray) -> int | None:
        """The first row of a cache [n, G, D] that is not what it keeps of the one computed; None if all are."""
        golden = self.noise.golden
        grid = grids(golden.manifest.case, golden.declared, "kv").get(stage)
        if grid is None or computed.shape != now.shape:
            return changed_row(computed, now)
        same = _kept(grid, computed.astype(np.float32), now).all(axis=(1, 2))
        return None if same.all() else int((~same).argmax())


def kept_rows(noise: NoiseFloors) -> KeptRows | None:
    """What the caches of a golden's case mean; None where they keep the dtype of the pass."""
    return KeptRows(noise) if noise.flips else None


def _kept(grid: Grid, computed: np.ndarray, now: np.ndarray) -> np.ndarray:
    """Which elements a cache may give back for those computed."""
    precision = "float32" if now.dtype == np.float32 else "bfloat16"
    kept: np.ndarray = ~grid.off(now, precision) & grid.may_keep(computed, grid.nearest(now))
    return kept
