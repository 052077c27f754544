"""A product in fewer bits: its weight, what enters, what its parts give, or its sums from tile to tile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

import ml_dtypes
import numpy as np

from parity.block_formats import AGAIN, LEVELS, block_formats
from parity.diagnose.components.parts import Parts, in_all_or_some
from parity.diagnose.components.wrong import Component, WrongRows

FORMATS = {
    "fp8 (e4m3)": ml_dtypes.float8_e4m3fn,
    "fp8 (e5m2)": ml_dtypes.float8_e5m2,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
Kept = Callable[[np.ndarray], np.ndarray]
"""From float64 numbers to what a format keeps of them, of scales that are those of the numbers it was made for."""

EIGHT_BITS = {name: FORMATS[name] for name in ("fp8 (e4m3)", "fp8 (e5m2)")}
TILES = (8, 16, 32, 64, 128)
"""Inputs after which a kernel may put its sum away."""


def in_roundings(
    wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts, passes: np.ndarray, biases: int
) -> Iterator[Component | None]:
    """Each format of weight and input, of all parts or of some; then sums.

    Args:
        x: what enters, [R, D].
        weight: float64 [wrong columns, D].
        passes: which pass each row is of, [R].
        biases: how many of the last columns meet a bias: ones, or shares, that are no numbers in memory.
    """
    for name, kept in _formats(weight):
        low = kept(weight)
        made = [(part, x[:, first:last] @ (low - weight)[:, first:last].T) for part, first, last in parts]
        yield in_all_or_some(wrong, f"the weight in {name}", x @ (low - weight).T, made)
    inputs = x.shape[1] - biases
    for name, kept in _formats(x[:, :inputs], passes):
        low = np.concatenate((kept(x[:, :inputs]), x[:, inputs:]), axis=1)
        made = [(part, (low - x)[:, first:last] @ weight[:, first:last].T) for part, first, last in parts]
        yield in_all_or_some(wrong, f"what enters in {name}", (low - x) @ weight.T, made)
        yield _but_for_edges(wrong, f"what enters in {name}", x[:, :inputs], kept, weight[:, :inputs])
    yield from _before_shares(wrong, x, weight, parts, passes)
    right = x @ weight.T
    for tile in TILES:
        if tile < x.shape[1]:
            says = f"{wrong.where}the sum in bfloat16 after each {tile} inputs"
            yield wrong.judged(says, _summed(x, weight, tile) - right, 0)
    for says, rounded in _in_parts(x, weight, parts):
        yield wrong.judged(f"{wrong.where}{says}", rounded - right, 0)


def _before_shares(
    wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts, passes: np.ndarray
) -> Iterator[Component | None]:
    """What enters each expert's last product in eight bits, before its share, which its bias has beside it."""
    wide, single = ([part for part in parts if (part[2] - part[1] == 1) == alone] for alone in (False, True))
    weighed = x[:, [first for _, first, _ in single]]
    if len(single) != len(wide) or (weighed == 1).all():
        return
    shares = np.repeat(weighed, [last - first for _, first, last in wide], axis=1)
    held, some = np.where(shares == 0, 1.0, shares), slice(wide[0][1], wide[-1][2])
    for name, kept in _formats(x[:, some] / held, passes):
        if name.startswith(("fp8", "int8")):
            low = partial(_shared, kept=kept, shares=held)
            says = f"what enters in {name}, before its share"
            yield wrong.judged(f"{wrong.where}{says}", (low(x[:, some]) - x[:, some]) @ weight[:, some].T, 0)
            yield _but_for_edges(wrong, says, x[:, some], low, weight[:, some])


def _shared(values: np.ndarray, kept: Kept, shares: np.ndarray) -> np.ndarray:
    return np.asarray(kept(values / shares) * shares)


NARROW = {name: FORMATS[name] for name in ("bfloat16", "float16")}


def _in_parts(x: np.ndarray, weight: np.ndarray, parts: Parts) -> Iterator[tuple[str, np.ndarray]]:
    """The product where what each part gives is rounded, or their sum behind each; experts' before their shares too.

    Experts have a column of their share each, which meets their bias.
    """
    runs = [(name, x[:, first:last] @ weight[:, first:last].T) for name, first, last in parts if last - first > 1]
    single = [first for _, first, last in parts if last - first == 1]
    kind = re.search(r"(\w+) \d+$", runs[0][0]) if len(runs) > 1 else None
    if kind is None:
        return
    gives, rest = [made for _, made in runs], x[:, single] @ weight[:, single].T
    if len(single) == len(runs):
        shares = [x[:, [one]] for one in single]
        gives = [made + share * weight[:, one] for made, share, one in zip(gives, shares, single, strict=True)]
        own = [made / np.where(share == 0, 1, share) for made, share in zip(gives, shares, strict=True)]
        rest = np.zeros_like(rest)
        for name, dtype in NARROW.items():
            weighed = sum(_low(made, dtype) * share for made, share in zip(own, shares, strict=True))
            yield f"what each {kind[1]} gives, before its share, in {name}", np.asarray(weighed)
    for name, dtype in NARROW.items():
        yield f"what each {kind[1]} gives in {name}", np.sum([_low(made, dtype) for made in gives], axis=0) + rest
        total = np.zeros_like(rest)
        for made in gives:
            total = _low(total + made, dtype)
        yield f"the sum in {name} behind each {kind[1]}", total + rest


SEEN, EDGE, CLEAR = 0.3, 0.012, 6.0
"""The share of an error from which a rounding explains it, but for numbers near an edge between two steps; how near,
relative to their size, for the device's own noise to decide (bfloat16 rounds by 0.002, and a gated product has several
such); what one of them takes away at the least, in squares of the noise of one output."""


def _but_for_edges(wrong: WrongRows, says: str, x: np.ndarray, kept: Kept, weight: np.ndarray) -> Component | None:
    """What enters in few bits, where numbers near an edge may have gone to the other side of it, each row's own."""
    error, low = wrong.error[:, wrong.columns], kept(x)
    model = (low - x) @ weight.T
    if not ((error - model) ** 2).sum() < (1 - SEEN) * (error**2).sum():
        return None
    other = kept(2 * x - low)
    near = (other != low) & (np.abs((low + other) / 2 - x) <= EDGE * np.abs(x))
    count = 0
    for row, left in enumerate(error - model):
        those = np.flatnonzero(near[row])
        steps = weight[:, those] * (other - low)[row, those]
        there = _taken(steps, left, CLEAR * float(wrong.noise[row, 0]) ** 2)
        model[row] += steps[:, there].sum(axis=1)
        count += len(there)
    return wrong.judged(f"{wrong.where}{says}, but for {count} numbers at an edge between two steps", model, count)


def _taken(steps: np.ndarray, left: np.ndarray, least: float) -> list[int]:
    """Which of some steps [C, n] add up to what is left [C], the one that takes most of it away first, while it is more
    than the `least` square."""
    taken: list[int] = []
    sizes, along = (steps**2).sum(axis=0), steps.T @ left
    while len(taken) < steps.shape[1]:
        gains = 2 * along - sizes
        gains[taken] = -np.inf
        best = int(gains.argmax())
        if gains[best] <= least:
            break
        taken.append(best)
        along -= steps.T @ steps[:, best]
    return taken


def _formats(values: np.ndarray, passes: np.ndarray | None = None) -> Iterator[tuple[str, Kept]]:
    """What each format keeps; those of few bits with a scale for each row, pass or for all of these numbers as well.

    With a scale the numbers are those in bfloat16 first, as most devices have them before: what is rounded already lies
    elsewhere between two steps. They may be held in it behind, too.
    """
    for name, dtype in FORMATS.items():
        yield name, partial(_low, dtype=dtype)
    yield "TF32", _in_tf32
    yield from block_formats()
    in_bfloat16 = partial(_low, dtype=ml_dtypes.bfloat16)
    for before, behind in ((in_bfloat16, np.asarray), (np.asarray, np.asarray), (in_bfloat16, in_bfloat16)):
        said = AGAIN if behind is in_bfloat16 else ""
        for which, most in _scales(before(values), passes):
            for name, levels in LEVELS.items():
                steps = partial(_in_steps, before=before, step=most / levels, low=np.round, behind=behind)
                yield f"{name} {which}{said}", steps
            for name, dtype in EIGHT_BITS.items():
                scale, low = most / float(ml_dtypes.finfo(dtype).max), partial(_low, dtype=dtype)
                yield f"{name} {which}{said}", partial(_in_steps, before=before, step=scale, low=low, behind=behind)


def _in_steps(values: np.ndarray, before: Kept, step: np.ndarray, low: Kept, behind: Kept) -> np.ndarray:
    """In float32, as a loader has them: half of the largest is as near to one step as to the next."""
    held, step = before(values).astype(np.float32), step.astype(np.float32)
    return np.asarray(behind((low(held / step) * step).astype(np.float64)))


def _scales(held: np.ndarray, passes: np.ndarray | None) -> Iterator[tuple[str, np.ndarray]]:
    """What one scale is of, and the largest number of those that share it, [R, 1] or [1, 1]."""
    for which, axis in (("by row", 1), ("with one scale", None)):
        yield which, np.maximum(np.abs(held).max(axis=axis, keepdims=True), 1e-300)
    if passes is not None:
        largest = np.zeros(passes.max() + 1)
        np.maximum.at(largest, passes, np.abs(held).max(axis=1))
        yield "with a scale by pass", np.maximum(largest[passes, None], 1e-300)


def _in_tf32(values: np.ndarray) -> np.ndarray:
    """Ten bits behind the point, as a tensor core takes float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def _low(values: np.ndarray, dtype: type) -> np.ndarray:
    """Float64 by way of float32, as a kernel has them."""
    return np.asarray(values.astype(np.float32).astype(dtype).astype(np.float64))


def _summed(x: np.ndarray, weight: np.ndarray, tile: int) -> np.ndarray:
    """The product with its sum rounded to bfloat16 behind every tile of inputs."""
    total = np.zeros((len(x), len(weight)))
    for first in range(0, x.shape[1], tile):
        some = slice(first, first + tile)
        total = _low(total + x[:, some] @ weight[:, some].T, ml_dtypes.bfloat16)
    return total
