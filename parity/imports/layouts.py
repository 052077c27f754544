"""The ways in which a tensor may hold a stage's rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from math import prod

from parity.imports.content import Features, Rows


def layouts(values: Rows, features: Features) -> Iterator[tuple[tuple[str, ...], Rows]]:
    """Every way to see a tensor as rows of these axes: its axes as a map has them (`R` the rows), and [R, F].

    One axis of size 1 may be the batch; the axes of a row may be in any order, each alone or all in one.
    """
    letters, sizes = [letter for letter, _ in features], dict(features)
    orders = list(permutations(letters))
    grouped = dict.fromkeys([*orders, *(("*".join(order),) for order in orders)])
    for batch in (None, *(axis for axis, size in enumerate(values.shape) if size == 1)):
        held = values if batch is None else values.squeeze(batch)
        for group in grouped:
            for place in range(len(group) + 1):
                axes = [*group[:place], "R", *group[place:]]
                if (rows := _rows(held, axes, letters, sizes)) is not None:
                    yield tuple(axes if batch is None else [*axes[:batch], "B", *axes[batch:]]), rows


def _rows(held: Rows, axes: list[str], letters: list[str], sizes: dict[str, int]) -> Rows | None:
    """A tensor with these axes as [R, F], features in the stage's order; None where its shape is another."""
    if held.ndim != len(axes):
        return None
    sizes = sizes | {"R": held.shape[axes.index("R")]}
    flat = [letter for axis in axes for letter in axis.split("*")]
    if held.shape != tuple(prod(sizes[letter] for letter in axis.split("*")) for axis in axes):
        return None
    turned = held.reshape([sizes[letter] for letter in flat]).transpose([flat.index(one) for one in ("R", *letters)])
    return turned.reshape(len(turned), -1)
