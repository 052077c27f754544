"""Which stage a tensor of unknown name, layout and rows is: by correlation with all that the golden holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray

from parity.imports.content import ADDED, Content, Known, Rows, Shelf, sketched
from parity.imports.layouts import layouts

LIKE = 0.05
"""Largest share of a tensor's squares that a stage may leave unexplained: a bfloat16 run of the tiny pair leaves
0.0002; what a planted defect made like another stage left 0.057 and more."""
APART = 4.0
"""How much more the next best must leave: errors of bfloat16 differ by half of that from tensor to tensor."""
ROUNDING = 1e-9
"""What leaves no more is the same values."""
CHANCE = 1e-4
"""Likelihood that some tensor of noise would fit as well; with few numbers everything resembles something."""
SCALED = 0.02
"""A factor this far from 1 and beyond three times the error is a scale; norms in bfloat16 are right to 0.4 %."""
MANY = 32
"""Of so many some may differ."""
PROBES, TRIED = 4, 32
"""Rows by which places are found, and places that are then compared in whole."""


@dataclass(frozen=True)
class Fit:
    """A tensor laid upon one of the golden's.

    Args:
        axes: letters of the tensor's own axes, as a map has them.
        first: the tensor's row that the stage's first one is; negative where the tensor begins further on.
        left: share of its squares unexplained, by one factor for all.
        scale: that factor.
    """

    known: Known
    axes: tuple[str, ...]
    first: int
    rows: int
    left: float
    scale: float

    @property
    def part(self) -> bool:
        """Whether the tensor has some of the stage's rows only."""
        return self.rows < self.known.rows

    @property
    def padded(self) -> bool:
        """Whether it has more than those."""
        return self.rows > self.known.rows

    @property
    def kind(self) -> int:
        """0 for all of its rows and no other, 1 for more, 2 for some of them."""
        return 2 * self.part + self.padded

    @property
    def place(self) -> tuple[int, int, str]:
        """Prompt, round and stage."""
        return self.known.prompt, self.known.round, self.known.stage

    @property
    def added(self) -> bool:
        """Whether the residual stream is in it."""
        return self.known.stage.endswith(ADDED)

    @property
    def scaled(self) -> bool:
        """Whether it is a multiple of the stage."""
        return abs(self.scale - 1) > max(SCALED, 3 * sqrt(self.left))


@dataclass(frozen=True)
class Paired:
    """What a tensor may be: nothing and why, one fit, or several that are alike; `next` is the best other."""

    fits: tuple[Fit, ...]
    next: Fit | None = None
    why: str = ""


def pair(array: NDArray[np.generic], golden: Content) -> Paired:
    """All fits of a tensor that are as good as the best one.

    Whole tensors come before padded ones, and these before parts: rows of a pass lie in the cache as well.
    """
    if array.dtype.kind in "iub":
        return _choices(array, golden)
    with np.errstate(over="ignore"):
        values = array.astype(np.float32)
    if not array.size or not np.isfinite(values).all():
        return Paired((), why="empty" if not array.size else "holds NaN or infinity")
    if values.min() == values.max():
        return Paired((), why=f"constant {values.flat[0]:g}")
    fits = [
        fit
        for features, shelf in golden.numbers.items()
        for axes, rows in layouts(values, features)
        for fit in fitting(rows, axes, shelf)
    ]
    return best(fits, sum(len(shelf.known) for shelf in golden.numbers.values()))


def _choices(array: NDArray[np.generic], golden: Content) -> Paired:
    """The stages with the same whole numbers, or with most of many: choices flip where two are as good."""
    held = array.squeeze().astype(np.int64)
    alike = golden.choices.get(held.shape, [])
    if not alike:
        return Paired((), why="no stage has whole numbers of such sizes")
    if 2.0 ** -bits(held) * len(alike) > CHANCE:
        return Paired((), why="too few whole numbers to tell: others could be the same")
    fits = []
    for known, theirs in alike:
        left = float(np.mean(held != theirs))
        if left <= (LIKE if held.size >= MANY else 0) and (axes := _axes(array.shape, known)):
            fits.append(Fit(known, axes, 0, known.rows, left, 1.0))
    if not fits:
        return Paired((), why="no stage has these whole numbers")
    limit = APART * min(fit.left for fit in fits)
    others = [fit for fit in fits if fit.left > limit]
    return Paired(tuple(fit for fit in fits if fit.left <= limit), min(others, key=lambda fit: fit.left, default=None))


def bits(held: NDArray[np.int64]) -> float:
    """What whole numbers say, in bits: those of each row that is another than the one before, out of their range."""
    rows = held.reshape(len(held), -1) if held.ndim else held.reshape(1, 1)
    new = 1 + np.count_nonzero(np.any(rows[1:] != rows[:-1], axis=1))
    return float(new * rows.shape[1] * np.log2(1.0 + held.max() - held.min()))


def _axes(shape: tuple[int, ...], known: Known) -> tuple[str, ...]:
    """Letters of a tensor's axes that has the sizes of a stage, and a batch of one where it has an axis more."""
    letters = list(known.named.stage.axes)
    if len(shape) == len(letters) + 1:
        letters.insert(shape.index(1), "B")
    return tuple(letters) if len(letters) == len(shape) else ()


def best(fits: list[Fit], count: int) -> Paired:
    """The best of the fits, or why none is good; `count` tensors were tried."""
    if not fits:
        return Paired((), why="no stage has rows of such sizes")
    alike = _alike([fit for fit in fits if fit.left <= APART * LIKE])
    nearest = min(alike or fits, key=lambda fit: fit.left)
    near = f"{nearest.known}, cosine {cosine(nearest):.3g}"
    if nearest.left > LIKE:
        return Paired((), why=f"nothing is like it; nearest {near}")
    if _chance(nearest, count) > CHANCE:
        return Paired((), why=f"too few numbers to tell; nearest {near}")
    chosen = {fit.place: fit for fit in reversed(alike)}  # of layouts of the same numbers the first
    others = [fit for fit in fits if fit.place not in chosen]
    return Paired(tuple(reversed(chosen.values())), min(others, key=lambda fit: fit.left, default=None))


def _alike(fits: list[Fit]) -> list[Fit]:
    """The best of them, and what is nearly as good.

    A fit that leaves rows out is compared with less: it counts beside one with all rows only where it is much better,
    and then neither is chosen.
    """
    alike: list[Fit] = []
    for kind in range(3):
        left = min((fit.left for fit in fits if fit.kind == kind), default=1.0)
        if not alike or APART * left < min(fit.left for fit in alike):
            alike += [fit for fit in fits if fit.kind == kind and fit.left <= max(APART * left, ROUNDING)]
    return alike


def cosine(fit: Fit) -> float:
    """Of the tensor and the stage."""
    return sqrt(max(1 - fit.left, 0.0))


def _chance(fit: Fit, count: int) -> float:
    """That one of so many directions in as many dimensions lies as near: the cap of a sphere."""
    numbers = min(fit.rows, fit.known.rows) * prod(fit.known.sizes[1:])
    return float(count * max(fit.left, 1e-12) ** ((numbers - 1) / 2))


def fitting(rows: Rows, axes: tuple[str, ...], shelf: Shelf) -> Iterator[Fit]:
    """The best place of these rows upon each of the tensors that a few of them resemble."""
    mine = sketched(rows)
    norms = np.sqrt(np.square(mine).sum(axis=1)) + 1e-30
    probes = np.argsort(-norms, kind="stable")[:: max(1, len(mine) // PROBES)][:PROBES]
    like = np.abs(mine[probes] @ shelf.rows.T) / shelf.norms / norms[probes, None]
    best = np.maximum.reduceat(like, [known.first for known in shelf.known], axis=1).mean(axis=0)
    for number in np.argsort(-best, kind="stable")[:TRIED]:
        known = shelf.known[number]
        own = slice(known.first, known.first + known.rows)
        firsts = {0, *(int(probe) - int(at) for probe, at in zip(probes, like[:, own].argmax(axis=1), strict=True))}
        named = tuple(known.named.stage.axes[0] if axis == "R" else axis for axis in axes)
        laid = [_laid(mine, shelf.rows[own], first, named, known) for first in firsts]
        if fits := [fit for fit in laid if fit]:
            yield min(fits, key=lambda fit: fit.left)


def _laid(mine: Rows, theirs: Rows, first: int, axes: tuple[str, ...], known: Known) -> Fit | None:
    """One laid on the other with an offset, the shorter within the longer; None where it stands out or is nothing."""
    longer = len(mine) - len(theirs)
    if not min(0, longer) <= first <= max(0, longer):
        return None
    count = min(len(mine), len(theirs))
    a, b = mine[max(first, 0) :][:count].astype(np.float64), theirs[max(-first, 0) :][:count].astype(np.float64)
    own, other = np.sum(a * a), np.sum(b * b)
    if not own or not other:
        return None
    scale = float(np.sum(a * b) / other)
    return Fit(known, axes, first, len(mine), float(np.sum(np.square(a - scale * b)) / own), scale)
