"""Values of a parameter read out of the device's own tensors, where these hold them plainly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from references.hypotheses.catalogue import Tensors


def _pairs(device: Tensors, golden: Tensors, stage: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(device, golden) of a stage in every round that has both in one shape."""
    for place, true in golden.items():
        if place[1] == stage and place in device and device[place].shape == true.shape and true.size:
            yield device[place], true


def placeholder(device: Tensors, golden: Tensors) -> int | None:
    """The one id that stands on the last masked row in every verify round."""
    found = {int(ids[-1]) for (round_, stage), ids in device.items() if stage == "drafter.input_ids" and round_ and len(ids)}
    true = {int(ids[-1]) for (round_, stage), ids in golden.items() if stage == "drafter.input_ids" and round_ and len(ids)}
    return found.pop() if len(found) == 1 and found != true else None


class Offset:
    """The one number, not 0, by which integers of a stage differ from the golden's wherever they differ."""

    def __init__(self, stage: str):
        self.stage = stage

    def __call__(self, device: Tensors, golden: Tensors) -> int | None:
        apart = [np.unique(mine.astype(np.int64) - true) for mine, true in _pairs(device, golden, self.stage)]
        found = set(np.concatenate(apart).tolist()) - {0} if apart else set()
        return found.pop() if len(found) == 1 else None


class Ratio:
    """The factor that takes the golden's stage nearest to the device's."""

    def __init__(self, stage: str):
        self.stage = stage

    def __call__(self, device: Tensors, golden: Tensors) -> float | None:
        along = squares = 0.0
        for mine, true in _pairs(device, golden, self.stage):
            wide = true.astype(np.float64)
            along += float((mine.astype(np.float64) * wide).sum())
            squares += float((wide * wide).sum())
        return along / squares if squares and np.isfinite(along) and along != squares else None
