"""Weights that hold other numbers than the checkpoint's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.unseen.moments import moment
from parity.device.pipeline import Pipeline


def rewritten(
    pipeline: Pipeline, weights: dict[str, Any], name: str, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    """The weight of this name is `change` of a copy of it, in its dtype."""
    weights[name] = moment(pipeline).changed(weights[name], change)
