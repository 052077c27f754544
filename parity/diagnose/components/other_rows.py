"""What enters a product at other rows than its own: of a buffer that was read a row off, or a pass late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from parity.diagnose.components.wrong import WrongRows


def of_other_rows(wrong: WrongRows, x: np.ndarray) -> Iterator[tuple[str, Callable[[np.ndarray], np.ndarray]]]:
    """What would enter [r, D] at some rows if it were another row's, of x [R, D]; a row without one keeps its own."""
    if wrong.every is None or len(wrong.every.golden) != len(x):
        return
    labels = wrong.every.labels[:, :2]
    _, passes, counts = np.unique(labels, axis=0, return_inverse=True, return_counts=True)
    passes, starts = passes.ravel(), np.cumsum([0, *counts[:-1]])
    own = np.arange(len(x))
    if (np.diff(passes) < 0).any():
        return  # the rows of a pass are not beside each other
    at = own - starts[passes]
    for says, there, exists in (
        ("of the row before", own - 1, at > 0),
        ("of the row behind", own + 1, at + 1 < counts[passes]),
        ("of the same row of the pass before", starts[passes - 1] + at, (passes > 0) & (at < counts[passes - 1])),
        ("of the pass' first row", starts[passes], at > 0),
        ("of the pass' last row", starts[passes] + counts[passes] - 1, at + 1 < counts[passes]),
    ):
        taken = np.where(exists, there, own)
        yield f"what enters is that {says}", partial(_at, x[taken])


def _at(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.asarray(x[rows])
