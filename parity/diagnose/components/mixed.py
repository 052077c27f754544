"""Columns that stand in runs of one width, as the taps of several layers do: runs that are sums of the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parity.diagnose.components.wrong import Component, WrongRows

RUNS = {2: "half", 3: "third", 4: "quarter"}
"""So many runs are tried, each of which may be a sum of all: more have too many numbers of their own."""

NONE = 0.01
"""A share below which a run is not said to be in a sum."""

ROWS = 3
"""Times as many numbers as a sum has are the fewest that it is told from."""


def in_mixed_runs(wrong: WrongRows) -> Iterator[Component | None]:
    """Each half, third or quarter of the columns as a sum of all of them, each so many times."""
    for count, name in RUNS.items():
        width = wrong.golden.shape[1]
        if width % count or len(wrong.golden) * width < ROWS * count**2:
            continue
        golden, device = (side.reshape(len(side), count, -1) for side in (wrong.golden, wrong.device))
        if not (np.isfinite(golden).all() and np.isfinite(device).all()):
            return
        times = _times(golden, device)
        if np.abs(times - np.eye(count) * times[0, 0]).max() < NONE:
            continue  # one factor, of which others say more
        made = np.einsum("oi,riw->row", times, golden).reshape(len(golden), -1)
        says = f"each {name} of the columns holds {_said(times, name)}"
        numbers = 1 if np.ptp(times) < NONE else count**2
        yield wrong.judged(says, (made - wrong.golden)[:, wrong.columns], numbers)


def _times(golden: np.ndarray, device: np.ndarray) -> np.ndarray:
    """How often each run [R, C, W] is in each of the device's: [C of the device, C]."""
    inputs, outputs = (np.moveaxis(side, 1, 0).reshape(side.shape[1], -1) for side in (golden, device))
    return np.asarray(np.linalg.lstsq(inputs.T, outputs.T, rcond=None)[0].T)


def _said(times: np.ndarray, name: str) -> str:
    if np.ptp(times) < NONE:
        mean = float(times.mean())
        return "the mean of all" if abs(mean * len(times) - 1) < NONE * len(times) else f"{mean:.3g} times their sum"
    sums = [
        " and ".join(f"{share:.3g} of {name} {run}" for run, share in enumerate(row, 1) if abs(share) > NONE) or "zeros"
        for row in times
    ]
    return "others: " + "; ".join(sums)
