"""What the rows of one pass are: where they sit, what they see, how they are rotated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.device.kernels.attention import visible
from parity.device.kernels.pages import PageStep
from parity.device.kernels.program import program


@dataclass(frozen=True)
class Step:
    """One pass over S rows.

    Args:
        slots: int32 [B, S], the cache row each row writes.
        cos, sin: float32 [B, S, D/2].
        span: cache rows that can be seen; static.
        seen: window (None for no window) to bool [B, S, span].
        pages: of a pass of which each row sees some pages alone; there is no mask then.
    """

    slots: Any
    cos: Any
    sin: Any
    span: int
    seen: dict[int | None, Any]
    pages: PageStep | None = None


@program
def make_step(
    positions: Any, slots: Any, tables: tuple[Any, Any], span: int, windows: tuple[int | None, ...] = (None,)
) -> Step:
    """Masks and rotations of positions [B, S], once for all layers."""
    cos, sin = (np.take(table, positions, axis=0) for table in tables)
    seen = {window: visible(positions, span, window) for window in dict.fromkeys(windows)}
    return Step(slots, cos, sin, span, seen)


@program
def make_block_step(
    positions: Any, slots: Any, tables: tuple[Any, Any], span: int, windows: tuple[int | None, ...] = (None,)
) -> Step:
    """The same where each row sees every slot up to the last row's, rows behind it included."""
    cos, sin = (np.take(table, positions, axis=0) for table in tables)
    seen = {window: visible(slots[:, -1:] + 0 * slots, span, window) for window in dict.fromkeys(windows)}
    return Step(slots, cos, sin, span, seen)
