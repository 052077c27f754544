"""Choosing rows along the sequence axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.kernels.program import program


@program
def window(x: Any, starts: Any, width: int) -> Any:
    """`width` rows of x [B, S, H] from starts [B] on; behind the end the last row again."""
    index = starts[:, None] + np.arange(width, dtype=np.int32)
    return np.take_along_axis(x, np.minimum(index, x.shape[1] - 1)[:, :, None], axis=1)
