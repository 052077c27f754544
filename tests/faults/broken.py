"""Devices that are wrong in a way no catalogue of faults holds: one that lies, one that breaks down."""

from __future__ import annotations

from dataclasses import replace

from parity import device
from parity.device.pipeline import Pipeline


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
