"""Devices that are not clean: they round where nothing asks for it."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np

from parity import device
from parity.device.engines.reordered import Order
from parity.device.pipeline import Pipeline
from parity.device.variants import Variant


def narrow_accumulator(**options) -> Pipeline:
    """Sums in eight parts whose running total is kept in bfloat16."""
    return Variant(Order(parts=8, accumulator=ml_dtypes.bfloat16), name="narrow accumulator")(**options)


def six_bit_taps(target: Path, drafter: Path, k: int, precision: str) -> Pipeline:
    """The drafter is handed its taps with two bits less than bfloat16 has."""
    rough = device.load(target, drafter, k, precision)
    forward = rough.drafter.forward

    def rounded(taps, *rest):
        held = taps.held.view(np.uint32)
        taps.held = ((held + np.uint32(0x2_0000)) & np.uint32(0xFFFC_0000)).view(np.float32)
        return forward(taps, *rest)

    rough.drafter.forward = rounded
    return rough
