"""What is off by so little that no row is wrong alone: told over all rows of a stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from parity.diagnose.components.keys import in_faint_keys
from parity.diagnose.components.products import StageProduct, bias_at, times
from parity.diagnose.components.wrong import CERTAIN, Component, WrongRows, best_of

OWN_SIZE = 0.1
"""How far from its own size a change may be fitted that is what happened."""

AHEAD = 2.0
"""The lead over the next part of one that is faintly off, in squared standard errors."""


def in_faint(wrong: WrongRows, product: StageProduct, check: Callable[[], None] = lambda: None) -> Component | None:
    """What leaves nothing of what is off by so little that no row is wrong alone; `wrong` holds all rows.

    `check` raises where the time is up: of some changes the best says nothing.
    """
    found = [in_faint_parts(wrong, product), in_faint_changes(wrong, product, check)]
    if product.keys is not None and product.weight is not None:
        weight, whole = product.weight[:, : bias_at(product)].astype(np.float64), np.ones_like(wrong.columns)
        found.append(in_faint_keys(replace(wrong, columns=whole), weight, product.keys(wrong.numbers.tolist())))
    return best_of(one for one in found if one is not None and one.whole)


def in_faint_parts(wrong: WrongRows, product: StageProduct) -> Component | None:
    """The part whose size is off, by as little as shows over many rows and in none of them alone."""
    if product.weight is None:
        return None
    x, weight, sure = product.x[wrong.numbers], product.weight.astype(np.float64), []
    for name, first, last in product.parts:
        part = x[:, first:last] @ weight[:, first:last].T / wrong.noise
        size, met = float((part**2).sum()), float((part * wrong.error / wrong.noise).sum())
        sure += [(met * met / size, name, met / size)] if size > 0 else []
    ranked = sorted(sure, reverse=True)
    total = float(((wrong.error / wrong.noise) ** 2).sum())
    if len(ranked) < 2 or ranked[0][0] < max(CERTAIN, AHEAD * ranked[1][0]):
        return None
    gain, name, factor = ranked[0]
    rest = np.sqrt((total - gain) / wrong.error.size)
    return Component(f"{name} {times(1 + factor)}", gain / total, float(rest), numbers=1)


def in_faint_changes(
    wrong: WrongRows, product: StageProduct, check: Callable[[], None] = lambda: None
) -> Component | None:
    """What might have entered, or come out, under a small change that shows over many rows and in none of them alone.

    Of all changes it is the one whose own size fits: another would have to be larger or smaller than it is. What is
    rounded to the device's own precision is none: that is part of the noise of any device.
    """
    x, error, sure = product.x[wrong.numbers], wrong.error / wrong.noise, []
    weight = None if product.weight is None else product.weight.astype(np.float64)
    for says, made in product.others():
        check()
        if wrong.precision in says:
            continue
        change = made(wrong.numbers) - x
        change = (change if weight is None else change @ weight.T) / wrong.noise
        size, met = float((change**2).sum()), float((change * error).sum())
        if size > 0 and np.isfinite(size) and abs(met / size - 1) < OWN_SIZE:
            sure.append((met * met / size, says))
    gain, says = max(sure, default=(0.0, ""))
    if gain < CERTAIN:
        return None
    total = float((error**2).sum())
    return Component(says, gain / total, float(np.sqrt((total - gain) / error.size)))
