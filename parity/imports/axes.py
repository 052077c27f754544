"""Captured tensors with the axes of their stages: no batch, no padding, no two axes in one."""

from __future__ import annotations

import numpy as np

from parity.errors import UsageError
from parity.golden.store import Dump
from parity.imports.placing import Place, Placed


def arranged(placed: Placed, place: Place, golden: Dump) -> np.ndarray:
    """A tensor with the axes of its stage, logical rows only.

    Raises:
        UsageError: its shape is not what its row says, or a size that is needed is the golden's, which lacks the place.
    """
    row, named, source = placed.row, placed.named, placed.captured.source
    array, own = placed.captured.load(), named.stage.axes
    axes = row.axes or own
    if array.ndim != len(axes):
        said = f"has shape {list(array.shape)}, its axes are [{','.join(axes)}]"
        raise UsageError(f"{source}: {placed.captured.name} {said}")
    if "B" in axes:
        array, axes = _entry(array, axes, placed)
    true = golden.rows.get(("float32", *place[:3]))
    if true is None and (row.padded or len(axes) != len(own)):
        raise UsageError(f"{source}: the golden has no {named.name} in round {place[1]}, so its sizes are not known")
    if len(axes) != len(own):
        array, axes = _split(array, axes, dict(zip(own, true.full_shape, strict=True)), placed)
    array = array.transpose([list(axes).index(letter) for letter in own])[row.slice]
    if row.padded and not (row.sharding == own[0]):
        array = array[: true.full_shape[0]]
    return array


def _entry(array: np.ndarray, axes: tuple[str, ...], placed: Placed) -> tuple[np.ndarray, tuple[str, ...]]:
    """One entry of the batch."""
    place, count = axes.index("B"), len(placed.row.prompts) or 1
    if array.shape[place] != count:
        said = f"B has size {array.shape[place]}, the row names {count} prompts"
        raise UsageError(f"{placed.captured.source}: {placed.captured.name}: {said}")
    return array.take(placed.entry or 0, axis=place), axes[:place] + axes[place + 1 :]


def _split(
    array: np.ndarray, axes: tuple[str, ...], sizes: dict[str, int], placed: Placed
) -> tuple[np.ndarray, list[str]]:
    """`N*D` as N and D; the first of them may be a rank's part, the others have the golden's size."""
    shape, letters = [], []
    for size, axis in zip(array.shape, axes, strict=True):
        first, *rest = axis.split("*")
        inner = int(np.prod([sizes[letter] for letter in rest], dtype=np.int64))
        if size % inner:
            said = f"{size} is no multiple of {axis}'s {inner}"
            raise UsageError(f"{placed.captured.source}: {placed.captured.name}: {said}")
        shape += [size // inner, *(sizes[letter] for letter in rest)]
        letters += [first, *rest]
    return array.reshape(shape), letters
