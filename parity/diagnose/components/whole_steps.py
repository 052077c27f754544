"""Numbers that are whole steps of a scale: what integers of eight or four bits keep of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parity.block_formats import LEVELS
from parity.diagnose.components.wrong import NEARLY_ALL, Component, WrongRows

EXACT = 2.0**-8
"""How far a step of the scale is off, relative: the number and the scale are rounded to bfloat16 both."""

WHOLE = 0.1
"""A number is a whole number of steps where it is as near to one: by chance one in five is."""

ENOUGH, EACH = 48, 8
"""Numbers of so few steps that this can be told, at the least, and for each scale: of 48 by chance 95 % are whole once
in 2^90; one or two are whole steps of some scale whatever they are."""

SMALLEST, NEAR = (1, 2, 3, 4), 10
"""How many steps the smallest number of a group may be, and up to how many one tells how large a step is."""

BETTER = 0.1
"""The share of the numbers that have to be whole steps of a scale beyond those of the one before it: half of a scale
fits as well."""

CHANCE = 0.6
"""The share of the golden's own numbers that may be whole steps of these scales."""


def in_whole_steps(wrong: WrongRows) -> Iterator[Component | None]:
    """Integers by a scale for all rows, each pass, row, head or column, or each row's heads."""
    golden, device = wrong.golden[:, wrong.columns], wrong.device[:, wrong.columns]
    for which, groups in _groups(wrong):
        for name, most in sorted(LEVELS.items(), key=lambda item: item[1]):  # steps of few bits are steps of more too
            yield _of(wrong, golden, device, groups, most, f"{name} with {which}")


def _groups(wrong: WrongRows) -> Iterator[tuple[str, np.ndarray]]:
    """What has a scale of its own, and which of these each number is of, int64 [R, C]."""
    passes, columns = wrong.passes[:, None], np.flatnonzero(wrong.columns)
    row, column = np.arange(len(passes))[:, None], np.arange(len(columns))[None, :]
    none = np.zeros((len(passes), len(columns)), np.int64)
    heads = wrong.tail[0] if len(wrong.tail) > 1 else 1
    head = (columns // (wrong.golden.shape[1] // heads))[None, :]
    yield "one scale", none
    yield "a scale for each pass", passes + none
    if heads > 1:
        yield "a scale for each head", head + none
        yield "a scale for each head of a pass", passes * heads + head
    yield "a scale for each row", row + none
    yield "a scale for each column", column + none
    if heads > 1:
        yield "a scale for each head of a row", row * heads + head


def _of(
    wrong: WrongRows, golden: np.ndarray, device: np.ndarray, groups: np.ndarray, most: int, says: str
) -> Component | None:
    step = _steps(device, groups, most)[groups]
    told, beyond = _told(device, step, most), np.abs(device) > (most + 0.5) * step
    if told.sum() < max(ENOUGH, EACH * (groups.max() + 1)) or beyond.mean() > 1 - NEARLY_ALL:
        return None
    if _whole(device / step)[told].mean() < NEARLY_ALL:
        return None
    within = float((np.abs(device - golden) <= step).mean())  # half of it, and what bfloat16 costs either side
    if within < NEARLY_ALL or _whole(golden / step)[told].mean() > CHANCE:
        return None
    return Component(f"{wrong.where}{says}", within, None)


def _steps(device: np.ndarray, groups: np.ndarray, most: int) -> np.ndarray:
    """The scale of each group [groups]: what its largest number is `most` times, or its smallest a few times, where
    most numbers are whole steps of it."""
    size, of = np.abs(device).ravel(), groups.ravel()
    smallest, largest = np.full(of.max() + 1, np.inf), np.zeros(of.max() + 1)
    np.minimum.at(smallest, of, np.where(size > 0, size, np.inf))
    np.maximum.at(largest, of, size)
    smallest = np.where(np.isfinite(smallest), smallest, 1.0)
    best, found = np.full(len(largest), -1.0), smallest
    for first in (np.where(largest > 0, largest, 1.0) / most, *(smallest / times for times in SMALLEST)):
        step = _refined(size, of, _refined(size, of, first))
        told = _told(size, step[of], most)
        whole = np.bincount(of, weights=told & _whole(size / step[of]))
        share = np.where(largest > (most + 0.5) * step, 0.0, whole / np.maximum(np.bincount(of, weights=told), 1))
        better = share > best + BETTER
        found, best = np.where(better, step, found), np.where(better, share, best)
    return found


def _refined(size: np.ndarray, of: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Scales [groups] that fit the numbers of few steps best: one number's rounding is another one's."""
    steps = np.round(size / step[of])
    near = (steps > 0) & (steps < NEAR)
    square, product = (np.bincount(of, weights=near * steps * other, minlength=len(step)) for other in (steps, size))
    return np.where(square > 0, product / np.maximum(square, 1), step)


def _told(device: np.ndarray, step: np.ndarray, most: int) -> np.ndarray:
    """Numbers of so few steps that a whole one is told from another."""
    size = np.abs(device) / step
    return np.asarray((size > 0.5) & (size < min(WHOLE / EXACT, most - 0.5)))


def _whole(steps: np.ndarray) -> np.ndarray:
    """Which numbers, counted in steps, are whole ones."""
    return np.asarray(np.abs(steps - np.round(steps)) < WHOLE)
