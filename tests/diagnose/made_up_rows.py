"""Rows of a stage that are made up, and what a device shows of them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from parity.compare.rows import StageRows
from parity.diagnose.components.wrong import WrongRows, preferred
from parity.stages import declared

ROWS, WIDTH, HEADS = 60, 96, 4


NAMES = declared(2, 2)


def bfloat16(x):
    return np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float64)


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def rows_of(golden, device, stage="target.layers.1.attn_out"):
    """Made-up rows; the device rounds to bfloat16, as the floor does by other bits."""
    floor = bfloat16(golden * (1 + random(*golden.shape, seed=9) * 2e-3))
    places = np.zeros(len(golden), np.int64), np.zeros(len(golden), np.int64), np.arange(len(golden))
    return StageRows(NAMES[stage], golden, bfloat16(device), floor, *places)


def wrong(*of):
    """The wrong ones of them."""
    return WrongRows.of(rows_of(*of), "bfloat16")


def said(found):
    """The first reading that leaves nothing."""
    return str(max((one for one in found if one is not None and one.whole), key=preferred, default=""))


def in_columns(golden, columns, values):
    changed = golden.copy()
    changed[:, columns] = values
    return changed


GOLDEN = random(ROWS, WIDTH)


BIAS = random(WIDTH, seed=1)
