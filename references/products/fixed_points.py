"""What has to enter for something to leave, where what enters goes round it: layers and their halves are x + f(x)."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

MIXED, STEPS, SETTLED = 12, 200, 1e-9
"""Earlier steps that a step is mixed of, steps at the most, and what may be missing of a row in the end, relative."""

FAR = 10.0
"""How much further than what is missing at the beginning a row may have gone: beyond it another one was found, which
ends alike."""

TINY = 1e-14
"""What is added to a row's normal equations, relative: steps of a row that has ended are all alike."""

NEWTON, FINE, FAST = 12, 1e-7, 0.2
"""Slopes that are taken of a row at the most, how far a difference reaches, relative to the row, and what a step may
leave of what is missing for the slopes to be good enough for the next."""

WIDE, AT_ONCE = 1024, 1 << 24
"""Columns beyond which a row's slopes cost too much, and elements of slopes that are held at once: 128 MiB."""

Half = Callable[[Tensor], Tensor]


def entering(gives: Half, left: Tensor, begun: Tensor) -> Tensor:
    """The rows x [r, C] for which `gives(x)` is what left, near `begun`; NaN where they are not found.

    By slopes where a row has few columns; what these do not find, and wide rows, by steps that need none.
    """
    x = torch.full_like(begun, math.nan)
    if left.shape[1] <= WIDE:
        numbers = torch.arange(len(left)).split(max(1, AT_ONCE // left.shape[1] ** 2))
        x = torch.cat([_by_slopes(gives, left[some], begun[some]) for some in numbers])
    lost = x.isnan().any(dim=1)
    if lost.any():
        found = without_slopes(gives, left[lost], begun[lost])
        reach = FAR * (left - gives(begun))[lost].norm(dim=1) + SETTLED * left[lost].norm(dim=1)
        x[lost] = torch.where(((found - begun[lost]).norm(dim=1) > reach)[:, None], math.nan, found)
    return x


def without_slopes(gives: Half, left: Tensor, begun: Tensor) -> Tensor:
    """As `entering`, by Anderson's method alone: each row's step is mixed of those before, so that what they leave
    together is least. It may go far."""
    x, steps, lefts = begun, list[Tensor](), list[Tensor]()
    for _ in range(STEPS):
        missing = left - gives(x)
        going = missing.norm(dim=1) > SETTLED * left.norm(dim=1)
        if not going.any():
            break
        steps, lefts = [*steps, x][-MIXED - 1 :], [*lefts, missing][-MIXED - 1 :]
        x = torch.where(going[:, None], x + _step(steps, lefts), x)
    return torch.where(going[:, None], math.nan, x)


def _step(steps: list[Tensor], lefts: list[Tensor]) -> Tensor:
    """The next step of each row [r, C]."""
    missing = lefts[-1]
    if len(lefts) < 2:
        return missing
    moved, changed = (torch.stack([new - old for old, new in pairwise(made)], dim=2) for made in (steps, lefts))
    normal = changed.transpose(1, 2) @ changed
    size = TINY * normal.diagonal(dim1=1, dim2=2).mean(dim=1) + torch.finfo(normal.dtype).tiny
    normal = normal + size[:, None, None] * torch.eye(normal.shape[1], dtype=normal.dtype)
    factors = torch.linalg.solve(normal, changed.transpose(1, 2) @ missing[:, :, None])
    mixed: Tensor = ((moved + changed) @ factors)[..., 0]
    return missing - mixed


def _by_slopes(gives: Half, left: Tensor, begun: Tensor) -> Tensor:
    """Newton's method. Slopes are differences, C rows for each row: a row keeps them as long as its steps go fast."""
    x = begun
    slopes = left.new_zeros(*left.shape, left.shape[1])
    missing, anew, renewed = left - gives(x), torch.ones(len(left), dtype=torch.bool), torch.zeros(len(left))
    while True:
        going = (missing.norm(dim=1) > SETTLED * left.norm(dim=1)) & (~anew | (renewed < NEWTON))
        if not going.any():
            break
        new = going & anew
        if new.any():
            slopes[new] = _slopes(gives, x[new])
            renewed += new
        step = torch.linalg.lstsq(slopes[going], missing[going, :, None]).solution[..., 0]
        tried, was = x.clone(), missing
        tried[going] += step
        missing = left - gives(tried)
        fast = missing.norm(dim=1) <= FAST * was.norm(dim=1)
        taken = going & (fast | new)
        x, missing = torch.where(taken[:, None], tried, x), torch.where(taken[:, None], missing, was)
        anew = ~fast
    settled = missing.norm(dim=1) <= SETTLED * left.norm(dim=1)
    return torch.where(settled[:, None], x, math.nan)


def _slopes(gives: Half, x: Tensor) -> Tensor:
    """How each row's end moves with each column of x [r, C]: [r, C, C], columns of x last."""
    count, width = x.shape
    step = FINE * x.norm(dim=1)[:, None, None]
    moved = gives((x[:, None] + step * torch.eye(width, dtype=x.dtype)).flatten(0, 1)).view(count, width, width)
    slopes: Tensor = ((moved - gives(x)[:, None]) / step).transpose(1, 2)
    return slopes
