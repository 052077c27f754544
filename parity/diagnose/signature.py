"""What an error looks like where no hypothesis fits: which rows, heads and rounds, and what it resembles."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parity.compare.origins import held_instead
from parity.compare.rows import HALF_ULP, StageRows, stage_rows
from parity.compare.statistics import fit
from parity.compare.units import RED, relative_errors, wrong_rows
from parity.diagnose.residuals import Residual
from parity.golden.views import DumpView, TrustedGolden

EVERY, UNEVEN = 0.95, 4.0
"""What differs for all rows alike, as a weight does, is wrong in all of them but lucky ones, and by about as much: what
masks, positions or caches do wrong differs by more than this factor from the typical row to the worst."""

UNRELATED = 0.1
"""Tensors of other weights have a cosine of about 1 / sqrt(width): below 0.1 for a width of 100 and more."""

UNLOADED = "unrelated to the golden's"


def signature(golden: TrustedGolden, run: DumpView, first: Residual) -> Iterator[str]:
    """Sentences about the error at the first red stage."""
    named = golden.declared.get(first.stage)
    rows = stage_rows(golden, run, named) if named and first.stage in golden.manifest.stages else None
    if rows is None:
        yield "no tensor of both sides has the same shape"
        return
    if rows.named.stage.exact:
        yield from _exact(rows)
        return
    lost = np.asarray(~np.isfinite(rows.device.reshape(len(rows.device), -1).astype(np.float32)).all(axis=1))
    if lost.any() or not np.isfinite(rows.golden).all():
        yield (
            f"{lost.sum()} of {len(lost)} rows hold NaN or Inf" if lost.any() else "the golden itself holds NaN or Inf"
        )
        yield from _range("round", rows.round, lost)
        yield from _range("position", rows.position, lost)
        return
    if rows.floor is None or not np.isfinite(rows.floor.astype(np.float32)).all():
        yield "the golden's noise at this stage is not finite"
        return
    error, noise = (relative_errors(rows.golden, side) for side in (rows.device, rows.floor))
    precision = run.manifest.case.precision
    bad = wrong_rows(error, noise, precision)
    yield from _rows(rows, bad, error, "beyond float32's rounding" if precision == "float32" else f"{RED:g}x its noise")
    yield from _heads(rows)
    yield from _scale(rows)
    held = held_instead(golden, run, rows.named)
    yield from [str(held)] if held else []


def _rows(rows: StageRows, bad: np.ndarray, error: np.ndarray, bound: str) -> Iterator[str]:
    """Which rows: by round, position, masked or committed; whether it grows with position."""
    if not bad.any():
        yield f"no single row is {bound}: the error is small and everywhere"
        return
    yield f"{bad.sum()} of {len(bad)} rows"
    yield from _range("round", rows.round, bad)
    yield from _range("position", rows.position, bad)
    if bad.mean() > EVERY and len(np.unique(rows.round)) > 1 and error.max() < UNEVEN * np.median(error):
        yield "alike in every row and round: as from a weight, a bias or a constant of this segment that differs"
    masked = _masked(rows)
    if masked is not None and bad[masked].any() != bad[~masked].any():
        yield "only masked rows" if bad[masked].any() else "only committed rows"
    if bad.all() and len(np.unique(rows.position)) > 8 and np.ptp(error) > 0:
        slope = np.corrcoef(rows.position, error)[0, 1]
        yield from ["grows with position"] if slope > 0.7 else ["alike at all positions"] if abs(slope) < 0.2 else []


def _range(what: str, labels: np.ndarray, bad: np.ndarray) -> Iterator[str]:
    """Say where the wrong rows are, if the right ones are elsewhere."""
    wrong, right = np.unique(labels[bad]), np.unique(labels[~bad])
    if not len(right) or not len(wrong) or len(np.unique(labels)) == 1:
        return
    if wrong.min() > right.max():
        yield f"only from {what} {wrong.min()} on"
    elif wrong.max() < right.min():
        yield f"only up to {what} {wrong.max()}"
    elif len(wrong) <= 4 and not set(right) & set(wrong):
        yield f"only {what} {', '.join(map(str, wrong))}"


def _masked(rows: StageRows) -> np.ndarray | None:
    """The masked rows of a drafter stage: the ones behind the last committed position of their round."""
    axes = rows.named.stage.axes
    if not axes or axes[0] != "W":
        return None
    masked = np.zeros(len(rows.round), bool)
    for round_ in np.unique(rows.round[rows.round > 0]):
        inside = np.flatnonzero(rows.round == round_)
        later = np.flatnonzero(rows.round == round_ + 1)
        first = rows.position[later].min() if len(later) else rows.position[inside].max() + 1
        masked[inside] = rows.position[inside] >= first
    return masked


def _heads(rows: StageRows) -> Iterator[str]:
    """Which heads, of a stage that has them."""
    if not {"N", "G"} & set(rows.named.stage.axes) or rows.golden.ndim < 3 or rows.floor is None:
        return
    heads = range(rows.golden.shape[1])
    error, noise = (
        [relative_errors(rows.golden[:, h], side[:, h]).mean() for h in heads] for side in (rows.device, rows.floor)
    )
    bad = [h for h in heads if error[h] > RED * max(noise[h], HALF_ULP)]
    if 0 < len(bad) < len(heads):
        yield f"only head {', '.join(map(str, bad))}"


def _scale(rows: StageRows) -> Iterator[str]:
    """Whether a factor is most of it, or nothing of the golden is left in the device's tensor."""
    fitted = fit(rows.golden, rows.device)
    golden, device = (side.reshape(len(side), -1).astype(np.float64) for side in (rows.golden, rows.device))
    size = np.linalg.norm(golden) * np.linalg.norm(device)
    if size > 0 and abs(cosine := float((golden * device).sum() / size)) < UNRELATED:
        yield f"{UNLOADED} (cosine {cosine:.2f}): as from weights that were never loaded"
        return
    before = np.linalg.norm(device - golden)
    after = np.linalg.norm(device - golden * (1 + fitted.scale))
    if before > 0 and (after / before) ** 2 < 0.1:
        yield f"scaled by {1 + fitted.scale:.5g}: that is {1 - (after / before) ** 2:.2%} of the error"


def _exact(rows: StageRows) -> Iterator[str]:
    """Integers: how many rows, which, and by how much where that is one number."""
    apart = np.asarray((rows.golden != rows.device).any(axis=tuple(range(1, rows.golden.ndim))))
    if not len(apart):
        yield "no row of both sides stands in the same shape"
        return
    if not apart.any():
        yield f"none of {len(apart)} rows of the forced rounds: what the device emits when it runs freely"
        return
    yield f"{apart.sum()} of {len(apart)} rows"
    yield from _range("round", rows.round, apart)
    yield from _range("position", rows.position, apart)
    steps = np.unique((rows.device.astype(np.int64) - rows.golden)[apart])
    if len(steps) == 1:
        yield f"{steps[0]:+d} wherever it differs"
