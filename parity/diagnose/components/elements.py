"""What wrong elements hold, whatever computes them: zeros, a factor, a constant, other columns, a coarser grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import ceil, log2, sqrt

import numpy as np

from parity.compare.units import RED
from parity.diagnose.components.gathered import in_gathered_rows
from parity.diagnose.components.mixed import in_mixed_runs
from parity.diagnose.components.numbered import LEAST, by_lanes, in_runs, steps_of
from parity.diagnose.components.whole_steps import in_whole_steps
from parity.diagnose.components.wrong import FULL, NEARLY_ALL, Component, WrongRows, best_of

PAIRS = 1 << 24
"""Pairs of columns that are compared: 128 MB of distances. A whole vocabulary against itself is more."""

FINE = {8: "as bfloat16 does", 11: "as float16 does"}
"""Significant bits that float32 may lose."""

DEAREST = 10 * RED**2
"""What another run of columns costs, in squares of a row's noise for each row: ten columns that are surely wrong."""

ROUNDED = 0.005
"""How far a factor is off that was fitted to numbers in bfloat16."""

VAGUE = 10
"""Numbers that a factor of each row, or column, counts besides its own: what it comes of says more, and is asked."""

COARSE = 6
"""Steps of 2^-6 and wider: with what bfloat16 itself keeps of numbers near 1 they are no coincidence."""


def in_elements(wrong: WrongRows) -> Iterator[Component | None]:
    """Every reading of the elements alone, the simplest first."""
    yield _one_number(wrong)
    yield _grid(wrong)
    yield _bits(wrong)
    yield best_of(in_whole_steps(wrong))
    yield from _factors(wrong)
    yield _constant(wrong)
    yield best_of((*(other_columns(wrong, step) for step in (0, -1, 1)), _columns_in_runs(wrong)))
    yield best_of(in_mixed_runs(wrong))
    yield best_of(in_gathered_rows(wrong))


def _one_number(wrong: WrongRows) -> Component | None:
    """Zeros, or another number that every wrong element holds, bit for bit."""
    device = wrong.device[:, wrong.columns]
    if not device.size or (device != device.flat[0]).any():
        return None
    says = f"{device.flat[0]:g} everywhere" if device.flat[0] else "zeros"
    return wrong.judged(f"{wrong.where}{says}", wrong.error[:, wrong.columns], 0)


def _factors(wrong: WrongRows) -> Iterator[Component | None]:
    """One factor for all, for each column, for each row."""
    golden, device = wrong.golden[:, wrong.columns], wrong.device[:, wrong.columns]
    square = golden**2
    product = golden * device
    one = float(product.sum() / max(square.sum(), 1e-300))
    size = "missing" if abs(one) < FULL else f"{one:.4g} times as large"
    found = wrong.judged(f"{wrong.where}{size}", (one - 1) * golden, 1)
    yield vague(found) if as_of_padding(one, wrong.golden.shape[1]) else found
    for axis, says in (
        (0, "each column {} its own factor ({:.3g} to {:.3g}): a norm's weight, or scales by channel"),
        (1, "each row {} its own factor ({:.3g} to {:.3g}): what a norm divides by, or a scale by row"),
    ):
        factor = product.sum(axis=axis, keepdims=True) / np.maximum(square.sum(axis=axis, keepdims=True), 1e-300)
        told = says.format("has", factor.min(), factor.max())
        yield vague(wrong.judged(f"{wrong.where}{told}", (factor - 1) * golden, factor.size))


def vague(found: Component | None) -> Component | None:
    """The same, behind what says where it comes from."""
    return found and replace(found, numbers=found.numbers + VAGUE)


def as_of_padding(factor: float, width: int) -> bool:
    """Whether a factor is that of a norm whose mean square is over a power of two in place of so many columns."""
    padded = 2.0 ** ceil(log2(width))
    return padded > width and abs(factor / sqrt(padded / width) - 1) < ROUNDED


def _constant(wrong: WrongRows) -> Component | None:
    """The same numbers in every row."""
    error = wrong.error[:, wrong.columns]
    mean = error.mean(axis=0, keepdims=True)
    return wrong.judged(
        f"{wrong.where}the same numbers in every row: a bias", np.broadcast_to(mean, error.shape), mean.size
    )


def other_columns(wrong: WrongRows, step: int = 0) -> Component | None:
    """The golden's numbers of other columns of the same row, or of the row so many behind."""
    mine = np.flatnonzero(wrong.columns)
    if len(mine) * len(wrong.columns) > PAIRS:
        return None
    held = wrong.beside(step) if step else wrong.golden
    device, golden = wrong.device[:, wrong.columns] / wrong.noise, held / wrong.noise
    apart = (device**2).sum(axis=0)[:, None] + (golden**2).sum(axis=0) - 2 * device.T @ golden
    own = apart[np.arange(len(mine)), mine]
    apart[np.arange(len(mine)), mine] = np.where(own > RED**2 * len(device), np.inf, own)  # what is right stays
    taken = apart.argmin(axis=1)
    off, count = Counter((taken - mine).tolist()).most_common(1)[0]
    what = "the numbers of other columns"
    if count > 0.9 * len(mine):
        what = f"the numbers of {abs(off)} columns {'before' if off < 0 else 'behind'}" if off else "the same columns"
    elif rule := by_lanes(mine, taken, len(wrong.columns)):
        what = f"the numbers of other columns, {rule}"
    whose = "" if not step else f" of the row {'before' if step < 0 else 'behind'}"
    return wrong.judged(f"{wrong.where}{what}{whose}", held[:, taken] - wrong.golden[:, mine], 0)


def _columns_in_runs(wrong: WrongRows) -> Component | None:
    """Run by run the numbers of other columns, each so many off, or zeros."""
    mine, width = np.flatnonzero(wrong.columns), len(wrong.columns)
    if len(mine) < LEAST or len(mine) * width > PAIRS:
        return None
    device, golden = wrong.device[:, wrong.columns] / wrong.noise, wrong.golden / wrong.noise
    apart = (device**2).sum(axis=0)[:, None] + (golden**2).sum(axis=0) - 2 * device.T @ golden
    steps = steps_of(mine, apart.argmin(axis=1))
    there = mine[:, None] + np.array(steps)
    inside = (there >= 0) & (there < width)
    costs = np.where(inside, np.take_along_axis(apart, np.clip(there, 0, width - 1), axis=1), np.inf)
    costs = np.column_stack([costs, (device**2).sum(axis=0)])
    runs = in_runs(mine, (*steps, None), costs, DEAREST * len(device))
    if runs is None:
        return None
    taken = np.array([0 if step is None else step for step in runs.steps]) + mine
    held = np.where([step is None for step in runs.steps], 0.0, wrong.golden[:, taken])
    says = f"{wrong.where}columns in runs: {runs.said('the numbers of the column')}"
    return wrong.judged(says, held - wrong.golden[:, mine], 2 * len(runs.runs))


def _grid(wrong: WrongRows) -> Component | None:
    """Multiples of a power of two that the golden's own rounding does not stop at."""
    device, golden = wrong.device[:, wrong.columns], wrong.golden[:, wrong.columns]
    floor = np.asarray(wrong.rows.noise_floor).reshape(len(device), -1).astype(np.float64)
    floor = floor[:, wrong.columns] if floor.shape == wrong.golden.shape else golden
    for power in range(-2, COARSE + 1):
        step = 2.0**-power
        if (device == np.round(device / step) * step).all():
            if (floor == np.round(floor / step) * step).mean() > 0.5:
                return None
            says = f"{wrong.where}rounded to multiples of {step:g}"
            within = np.abs(wrong.error[:, wrong.columns]).max() <= step
            return Component(says, 1.0, None) if within else None
    return None


def _bits(wrong: WrongRows) -> Component | None:
    """Numbers with fewer significant bits than the golden's noise has: than bfloat16's eight, or than float32's."""
    device, golden = wrong.device[:, wrong.columns], wrong.golden[:, wrong.columns]
    for bits in (*range(1, 6), *(FINE if wrong.precision == "float32" else ())):
        if (_to_bits(device, bits) == device).all():
            if (_to_bits(golden.astype(np.float32).astype(np.float64), bits) == golden).mean() > 0.5:
                return None
            apart, largest = np.abs(device - golden), np.maximum(np.abs(golden), np.abs(device))
            within = float((apart <= 2.0 ** (1 - bits) * largest).mean())
            known = FINE.get(bits, "fp8 keeps 4 as e4m3, 3 as e5m2")
            says = f"{wrong.where}{bits} significant bits are kept ({known})"
            return Component(says, within, None) if within > NEARLY_ALL else None
    return None


def _to_bits(values: np.ndarray, bits: int) -> np.ndarray:
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**bits), exponent - bits))
