"""Tensors of one prompt beside each other: whether two differ, and a sample of by how much."""

from __future__ import annotations

from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from parity.golden.fields import Variant
from parity.golden.views import DumpView
from parity.trace import Recorded

SAMPLED = 4096
"""Elements of a stage by which it is estimated what two hypotheses do together."""


def sampled_gap(before: Recorded, after: Recorded, stage: str) -> np.ndarray | None:
    """A sample of `after` - `before` at a stage over all rounds, NaN where either is not a number."""
    places = sorted(place for place in before if place[1] == stage)
    if not places or any(place not in after or after[place].shape != before[place].shape for place in places):
        return None
    if any(before[place].dtype.kind in "iub" for place in places):
        return None
    apart = np.concatenate([(after[place].astype(np.float32) - before[place]).ravel() for place in places])
    drawn = np.random.default_rng(0).integers(0, len(apart), SAMPLED)  # every so many would miss whole columns
    some: np.ndarray = apart[drawn] if len(apart) > SAMPLED else apart
    some[~np.isfinite(some)] = np.nan
    return some


class StageError(NamedTuple):
    """How far a device is from what is true, all elements together: relative L2, and RMS in the stage's own unit."""

    relative: float
    rms: float


def stage_error(true: Recorded, device: Recorded, stage: str) -> StageError | None:
    """How far a device is from what is true at a stage over all rounds.

    None where they are of other shapes or no numbers, or where a value is NaN or Inf.
    """
    missing = size = count = 0.0
    for place in (place for place in true if place[1] == stage):
        value, own = true[place], device.get(place)
        if own is None or own.shape != value.shape or value.dtype.kind in "iub" or own.dtype.kind in "iub":
            return None
        wide = value.astype(np.float64)
        missing += float(((own.astype(np.float64) - wide) ** 2).sum())
        size += float((wide**2).sum())
        count += wide.size
    return StageError(sqrt(missing / size), sqrt(missing / count)) if 0 < size < inf and missing < inf else None


def differ(true: np.ndarray | None, value: np.ndarray | None) -> bool:
    """Whether two tensors differ in a value, or only one of the two is there; NaN equals NaN."""
    return true is None or value is None or not np.array_equal(true, value, equal_nan=value.dtype.kind == "f")


def contents_of(dump: DumpView, variant: Variant) -> Recorded:
    """All tensors of a dump of one prompt in this precision, by round and stage."""
    places = [(round_, stage) for stored, _, round_, stage in dump.rows if stored == variant]
    tensors = {place: dump.contents(variant, 0, *place) for place in places}
    return {place: value for place, value in tensors.items() if value is not None}
