"""What tensors hold, as samples of the same places in each: which of expected's one of actual's is, in any layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import permutations
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.imports.content import Known, Shelf, sketched
from parity.imports.forms import DIGITS, FIELDS
from parity.imports.pairing import CHANCE, LIKE, Fit, Paired, best, bits, fitting
from parity.imports.placing import split
from parity.metrics.dtypes import is_exact
from parity.stages import Named, Stage
from parity.tensors.names import LETTERS

SAMPLED = 2**14
"""Elements of a tensor that are looked at: of so many, unlike ones agree by chance to one in a hundred."""
TURNED = 4
"""Axes whose order is searched: 24 orders; weights of more are in the same order or not found."""


@dataclass(frozen=True)
class KnownTensor(Known):
    """One tensor of expected; its coordinates are the numbers in its name."""

    numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def coordinates(self) -> dict[str, int]:
        """`n0`, `n1`, …: the numbers, in order."""
        return dict(self.numbers)

    def __str__(self) -> str:
        return self.stage


@dataclass
class ExpectedTensors:
    """Expected's tensors: floats by shape, integers as they are."""

    floats: dict[tuple[int, ...], Shelf] = field(default_factory=dict)
    integers: dict[tuple[int, ...], list[tuple[Known, NDArray[Any]]]] = field(default_factory=dict)

    def add(self, name: str, array: NDArray[Any]) -> None:
        """Put one tensor in; one that says nothing stays out."""
        sample = sampled(array)
        if not sample.size or not np.isfinite(sample.astype(np.float32)).all():
            return
        template, numbers = template_of(name)
        axes = ("R", *LETTERS[: array.ndim])
        named = Named(name, Stage(template, axes, exact=is_exact(array.dtype)))
        if is_exact(array.dtype):
            known = KnownTensor(0, 0, name, named, (1, sample.size), 0, numbers)
            self.integers.setdefault(array.shape, []).append((known, sample))
            return
        shelf = self.floats.setdefault(array.shape, Shelf())
        shelf.known.append(KnownTensor(0, 0, name, named, (1, sample.size), shelf.count, numbers))
        shelf.parts.append(sketched(sample[None].astype(np.float32)))
        shelf.count += 1

    def pair(self, array: NDArray[Any]) -> Paired:
        """What a tensor of actual may be."""
        if is_exact(array.dtype):
            return self._integers(array)
        sample = sampled(array).astype(np.float32)
        if not sample.size or not np.isfinite(sample).all():
            return Paired((), why="empty" if not sample.size else "holds NaN or infinity")
        if sample.min() == sample.max():
            return Paired((), why=f"constant {sample[0]:g}")
        fits = [
            fit
            for sizes, shelf in self.floats.items()
            for axes, turned in layouts(array, sizes)
            for fit in fitting(sampled(turned)[None].astype(np.float32), axes, shelf)
        ]
        return best(fits, sum(len(shelf.known) for shelf in self.floats.values()))

    def _integers(self, array: NDArray[Any]) -> Paired:
        if not array.size:
            return Paired((), why="empty")
        fits: list[Fit] = []
        for sizes, held in self.integers.items():
            for axes, turned in layouts(array, sizes):
                sample = sampled(turned)
                if 2.0 ** -bits(sample.astype(np.int64)) * len(held) > CHANCE:
                    return Paired((), why="too few whole numbers to tell")
                apart = ((known, float(np.mean(sample != theirs))) for known, theirs in held)
                fits += [Fit(known, axes, 0, 1, left, 1.0) for known, left in apart if left <= LIKE]
        nearest = min((fit.left for fit in fits), default=0.0)
        alike = {fit.place: fit for fit in reversed(fits) if fit.left <= nearest}
        return Paired(tuple(alike.values()), why="" if alike else "nothing has these whole numbers")


def template_of(name: str) -> tuple[str, dict[str, int]]:
    """A name with a field for each of its first numbers, and these: `layers.{n0}.w`; zeros in front stay, `{n0:02}`."""
    parts, numbers = DIGITS.split(name), dict[str, int]()
    for place in range(1, len(parts), 2):
        text = parts[place]
        if len(numbers) < FIELDS and len(text) < 10:
            key = f"n{len(numbers)}"
            numbers[key] = int(text)
            parts[place] = f"{{{key}:0{len(text)}}}" if text[0] == "0" and len(text) > 1 else f"{{{key}}}"
    return "".join(parts), numbers


def layouts(array: NDArray[Any], sizes: tuple[int, ...]) -> Iterator[tuple[tuple[str, ...], NDArray[Any]]]:
    """Every way to see a tensor with these axes: its own axes as a map has them, and the tensor with expected's."""
    if array.size != prod(sizes):
        return
    letters = tuple(LETTERS[: len(sizes)])
    orders: Iterable[tuple[str, ...]] = permutations(letters) if len(sizes) <= TURNED else (letters,)
    batches = [None, *(axis for axis, size in enumerate(array.shape) if size == 1)]
    for order in orders:
        for batch in batches:
            held = array if batch is None else array.squeeze(batch)
            axes = _joined(held.shape, order, dict(zip(letters, sizes, strict=True)))
            if axes is not None:
                whole, own = split(held, axes, dict(zip(letters, sizes, strict=True)), "")
                turned = whole.transpose([own.index(letter) for letter in letters])
                yield axes if batch is None else (*axes[:batch], "B", *axes[batch:]), turned


def _joined(shape: tuple[int, ...], order: tuple[str, ...], sizes: Mapping[str, int]) -> tuple[str, ...] | None:
    """Letters in this order shared out to the axes of a shape, several to one where it takes them."""
    left, axes = list(order), list[str]()
    for size in shape:
        taken = [left.pop(0)] if left else []
        while left and prod(sizes[letter] for letter in taken) < size:
            taken.append(left.pop(0))
        if not taken or prod(sizes[letter] for letter in taken) != size:
            return None
        axes.append("*".join(taken))
    return None if left else tuple(axes)


def sampled(array: NDArray[Any]) -> NDArray[Any]:
    """The same places of every tensor of a shape, [n]; a mapped one is read there only."""
    if array.size <= SAMPLED:
        return np.asarray(array).reshape(-1)
    return np.asarray(array[tuple(np.unravel_index(_places(array.size), array.shape))])


@lru_cache(maxsize=64)
def _places(size: int) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng(size).integers(0, size, SAMPLED))
