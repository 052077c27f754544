"""Another weight in a product: columns that meet another column's, another matrix in its place, or any at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from parity.diagnose.components.elements import other_columns
from parity.diagnose.components.parts import INSIDE, Parts, in_all_or_some, in_some, wide_parts
from parity.diagnose.components.wrong import Component, WrongRows, best_of

STEPS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Columns by which an input may be off: by one, or by a tile."""

RUNS = (2, 3, 4, 5, 6, 8, 12, 16)
"""Runs of inputs, taps or ranks, that may be read in turn."""

TILES = (128, 64, 32, 16, 8)
"""Columns of a tile that may meet another tile's weight."""

MANY, TABLE = 16, 1 << 24
"""Parts, or tiles of a part, of which every two are tried against each other, and numbers that all of them may hold."""

CUTOFF = 1e-9
"""Directions of what enters that are so much smaller than the largest are none."""


def in_weights(
    wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts, beside: Iterator[tuple[str, np.ndarray]]
) -> Iterator[Component | None]:
    """Every reading, the one with the fewest numbers of its own first.

    Args:
        x: what enters, [R, D].
        weight: float64 [C, D].
        beside: other weights [C, D] by their names.
    """
    yield _columns_but_for_the_bias(wrong, x, weight, parts)
    yield best_of(_read_otherwise(wrong, x, weight, parts))
    weight = weight[wrong.columns]
    yield best_of(_moved(wrong, x, weight, parts))
    yield best_of(_exchanged(wrong, x, weight, parts))
    yield best_of(_biases_of_others(wrong, x, weight, parts))
    yield best_of(_another(wrong, x, weight, parts, beside))


def _read_otherwise(wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts) -> Iterator[Component | None]:
    """A matrix, of each part or of all, whose numbers lie with its axes in another order than they are read in."""
    if weight.size > TABLE:
        return
    wide = wide_parts(parts, x.shape[1])
    whole = [("", wide[0][1], wide[-1][2])]
    for runs in [wide, whole] if len(wide) > 1 else [wide]:
        for lies, read in (("outputs", _outputs_first), ("inputs", _inputs_first)):
            made = []
            for name, at, end in runs:
                own = weight[:, at:end]
                made.append((name, x[:, at:end] @ (read(own) - own)[wrong.columns].T))
            of = "matrix of each" if len(runs) > 1 else "weight"
            says = f"the {of} lies in memory by {lies} and is read in the other order"
            yield in_all_or_some(wrong, says, np.sum([part for _, part in made], axis=0), made)


def _outputs_first(weight: np.ndarray) -> np.ndarray:
    return weight.reshape(weight.shape[::-1]).T


def _inputs_first(weight: np.ndarray) -> np.ndarray:
    return weight.T.reshape(weight.shape)


def _moved(wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts) -> Iterator[Component | None]:
    """Inputs that meet the weight of another column of their part."""
    wide = wide_parts(parts, x.shape[1])
    least = min(last - first for _, first, last in wide)
    for says, order in _orders(least):
        made = []
        for name, first, last in wide:
            if last - first == least:
                held = x[:, first:last]
                made.append((name, (held[:, order] - held) @ weight[:, first:last].T))
        if made:
            yield in_all_or_some(wrong, says, np.sum([part for _, part in made], axis=0), made)
    inputs = x.shape[1] - sum(last - first == 1 for _, first, last in parts)
    for says, order in _dealt(inputs):
        held = x[:, :inputs]
        yield wrong.judged(f"{wrong.where}{says}", (held[:, order] - held) @ weight[:, :inputs].T, 1)


def _dealt(width: int) -> Iterator[tuple[str, np.ndarray]]:
    """Orders of all inputs, over their parts, as of runs that are read in turn."""
    places = np.arange(width)
    for runs in RUNS:
        if width % runs == 0:
            yield f"inputs of {runs} runs in turn meet the weight", places.reshape(runs, -1).T.ravel()
            yield f"inputs in turn for {runs} runs meet the weight", places.reshape(-1, runs).T.ravel()


def _orders(width: int) -> Iterator[tuple[str, np.ndarray]]:
    """Orders of so many columns, each with what it says."""
    places = np.arange(width)
    for step in STEPS:
        if step < width:
            yield f"each input meets the weight of the column {step} before", np.roll(places, -step)
            yield f"each input meets the weight of the column {step} behind", np.roll(places, step)
    yield "inputs meet the weight in reverse", places[::-1]
    if width % 2 == 0:
        yield "even inputs first, then odd ones, meet the weight", np.concatenate((places[0::2], places[1::2]))
        yield "inputs of both halves in turn meet the weight", places.reshape(2, -1).T.ravel()
        yield "the halves of the input are exchanged", np.roll(places, width // 2)
        yield "neighbouring inputs are exchanged", places.reshape(-1, 2)[:, ::-1].ravel()


def _exchanged(wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts) -> Iterator[Component | None]:
    """Parts, or tiles of a part, that take another one's input, or meet another one's weight."""
    wide = wide_parts(parts, x.shape[1])
    if len(wide) > 1:
        yield _crossed(wrong, x, weight, wide)
        return
    _, start, end = wide[0]
    for width in TILES:
        tiles = [
            (f"inputs {first - start} to {first - start + width - 1}", first, first + width)
            for first in range(start, end - width + 1, width)
        ]
        if 1 < len(tiles) <= MANY:
            yield _crossed(wrong, x, weight, tiles)


def _biases_of_others(wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts) -> Iterator[Component | None]:
    """Biases of several parts, of which each part meets another one's."""
    single = [first for _, first, last in parts if last - first == 1]
    count = len(single)
    for step in range(1, count):
        change = np.roll(weight[:, single], -step, axis=1) - weight[:, single]
        where = f"{step} behind" if step <= count // 2 else f"{count - step} before"
        says = f"{wrong.where}the bias of each part is that of the one {where} ({parts[-count][0]} and so on)"
        yield wrong.judged(says, x[:, single] @ change.T, 1)


def _crossed(wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts) -> Component | None:
    """Parts of one width of which some take what another should, or meet the weight of another."""
    alike = [part for part in parts if part[2] - part[1] == parts[0][2] - parts[0][1]]
    if not 1 < len(alike) <= MANY or len(alike) ** 2 * len(x) * len(weight) > TABLE:
        return None
    pairs = [(part, other) for part in alike for other in alike if part is not other]
    taken, met = [], []
    for (name, first, last), (other, one, end) in pairs:
        many = "" if name.startswith("inputs") else "s"
        held, own = x[:, first:last], weight[:, first:last]
        taken.append((f"{name} take{many} what {other} should", (x[:, one:end] - held) @ own.T))
        met.append((f"{name} meet{many} the weight of {other}", held @ (weight[:, one:end] - own).T))
    return best_of(in_some(wrong, "", made) for made in (taken, met))  # both of two exchanged parts are the same change


def _columns_but_for_the_bias(wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts) -> Component | None:
    """Outputs by the weight of other columns, with their own bias."""
    single = [first for _, first, last in parts if last - first == 1]
    bias = x[:, single] @ weight[:, single].T
    if not single or bias.shape != wrong.golden.shape:
        return None
    found = other_columns(replace(wrong, golden=wrong.golden - bias, device=wrong.device - bias))
    return found and replace(found, says=f"{found.says}, but for the bias")


def _another(
    wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts, beside: Iterator[tuple[str, np.ndarray]]
) -> Iterator[Component | None]:
    """A matrix of another layer or projection, with its bias or without it."""
    single = np.zeros(x.shape[1], bool)
    for _, first, last in parts:
        single[first:last] = last - first == 1
    for whose, other in beside:
        change = other[wrong.columns].astype(np.float64) - weight
        yield wrong.judged(f"{wrong.where}the weight of {whose}", x @ change.T, 0)
        if single.any():
            model = x[:, ~single] @ change[:, ~single].T
            yield wrong.judged(f"{wrong.where}the weight of {whose}, but for the bias", model, 0)
            model = x[:, single] @ change[:, single].T
            yield wrong.judged(f"{wrong.where}the bias of {whose}", model, 0)


def any_weight(wrong: WrongRows, x: np.ndarray) -> Component | None:
    """The error as what another weight makes of the same inputs: told where there are more rows than inputs."""
    error = wrong.error[:, wrong.columns]
    left, size, _ = np.linalg.svd(x, full_matrices=False)
    left = left[:, size > CUTOFF * size[0]]
    if left.shape[1] > INSIDE * len(x):
        return None
    says = f"{wrong.where}another weight, or other columns of what enters: the error is linear in it"
    return wrong.judged(says, left @ (left.T @ error), left.shape[1] * error.shape[1], INSIDE)
