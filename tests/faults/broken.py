"""Devices with one defect each, planted outside the kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import device
from device.pipeline import Pipeline

WINDOW_LAYER = 4


def window_off(**options) -> Pipeline:
    """One sliding-window layer attends to everything."""
    broken = device.load(**options)
    windows = list(broken.target.windows)
    windows[WINDOW_LAYER] = None
    broken.target.windows = tuple(windows)
    return broken


def taps_one_layer_late(**options) -> Pipeline:
    """`in_of` layer numbers are read as `out_of`."""
    broken = device.load(**options)
    config = broken.drafter.config
    broken.drafter.config = replace(config, taps=tuple(layer + 1 for layer in config.taps))
    return broken


def rollback_on_head_axis(**options) -> Pipeline:
    """The drafter's rollback clears heads where it should clear rejected rows."""
    broken = device.load(**options)
    drafter = broken.drafter

    def rollback(length: int) -> None:
        rejected = broken.k - 1
        for keys, values in drafter.caches:
            for cache in (keys, values):
                kept = cache.shape[2] - min(rejected, cache.shape[2] - 1)
                cache[:, :, kept:] = np.zeros((), np.float32)
        drafter.length = length

    drafter.rollback = rollback
    return broken


def float32_in_disguise(**options) -> Pipeline:
    """A device that computes in float32 and says bfloat16."""
    broken = device.load(**options | {"precision": "float32"})
    says = replace(broken.describe(), precision="bfloat16")
    broken.describe = lambda: says
    return broken


def breaks_in_draft(**options) -> Pipeline:
    """A device whose draft raises."""
    broken = device.load(**options)
    broken.draft = lambda tap: [][1]
    return broken
