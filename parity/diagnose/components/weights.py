"""Another weight in a product: columns that meet another column's, another matrix in its place, or any at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from parity.diagnose.components.elements import other_columns
from parity.diagnose.components.parts import INSIDE, Parts, in_all_or_some, in_some
from parity.diagnose.components.wrong import Component, WrongRows, best_of

STEPS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Columns by which an input may be off: by one, or by a tile."""

TILES = (128, 64, 32, 16, 8)
"""Columns of a tile that may meet another tile's weight."""

MANY, TABLE = 16, 1 << 24
"""Parts, or tiles of a part, of which every two are tried against each other, and numbers that all of them may hold."""

BLOCKS = (32, 16, 64, 128)
"""Inputs of a block that has a scale of its own; MXFP4's have 32."""

DEVIATIONS, QUANTILES = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0), (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
"""Where a range of weights may end: in standard deviations, and in shares of all that are smaller."""

NEARLY, MOST = 0.1, 0.9
"""How near to a whole power of two a factor is one, and the share of the factors that have to be."""

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
    weight = weight[wrong.columns]
    yield best_of(_moved(wrong, x, weight, parts))
    yield best_of(_exchanged(wrong, x, weight, parts))
    yield best_of(_another(wrong, x, weight, parts, beside))


def _wide(parts: Parts, width: int) -> list[tuple[str, int, int]]:
    """The parts of more than one column; all columns that are no part's as one where none is."""
    wide = [part for part in parts if part[2] - part[1] > 1]
    end = min((first for _, first, _ in parts), default=width)
    return wide or [("", 0, end)]


def _moved(wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts) -> Iterator[Component | None]:
    """Inputs that meet the weight of another column of their part."""
    wide = _wide(parts, x.shape[1])
    least = min(last - first for _, first, last in wide)
    for says, order in _orders(least):
        made = []
        for name, first, last in wide:
            if last - first == least:
                held = x[:, first:last]
                made.append((name, (held[:, order] - held) @ weight[:, first:last].T))
        if made:
            yield in_all_or_some(wrong, says, np.sum([part for _, part in made], axis=0), made)


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
    wide = _wide(parts, x.shape[1])
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


def block_scales(wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts) -> Iterator[Component | None]:
    """Blocks of each output's weight that are of another size, each by a factor of its own: as by wrong scales.

    Args:
        weight: float64 [wrong columns, D].
    """
    error = wrong.error[:, wrong.columns]
    wide = _wide(parts, x.shape[1])
    for width in BLOCKS:
        if any((last - first) % width for _, first, last in wide):
            continue
        starts = [start for _, first, last in wide for start in range(first, last, width)]
        if len(starts) > wrong.error.shape[0] // 3 or len(starts) * error.size > TABLE:
            continue
        model, factors = np.empty_like(error), []
        for column, row in enumerate(weight):
            held = np.stack([x[:, start : start + width] @ row[start : start + width] for start in starts], axis=1)
            fitted = np.linalg.lstsq(held, error[:, column], rcond=None)[0]
            model[:, column] = held @ fitted
            factors += (1 + fitted[np.linalg.norm(held, axis=0) > 0]).tolist()
        powers = np.log2(np.maximum(np.abs(factors), 2.0**-20))
        whole = bool(np.mean(np.abs(powers - np.round(powers)) < NEARLY) > MOST and np.abs(np.round(powers)).any())
        says = f"each block of {width} inputs has a factor of its own{', powers of two' if whole else ''}: scales"
        yield wrong.judged(f"{wrong.where}{says}", model, len(starts) * len(weight))


def zero_points(wrong: WrongRows, x: np.ndarray, parts: Parts) -> Iterator[Component | None]:
    """Each output's weight off by a number of its own, the same for all inputs, or for those of a block."""
    error = wrong.error[:, wrong.columns]
    wide = _wide(parts, x.shape[1])
    for width in (0, *BLOCKS):
        if width and any((last - first) % width for _, first, last in wide):
            continue
        starts = [
            (one, one + (width or last - first)) for _, first, last in wide for one in range(first, last, width or last)
        ]
        if len(starts) > len(x) // 3:
            continue
        sums = np.stack([x[:, first:last].sum(axis=1) for first, last in starts], axis=1)
        fitted = np.linalg.lstsq(sums, error, rcond=None)[0]
        where = f" for each block of {width} inputs" if width else ""
        says = f"{wrong.where}each output's weight is off by a number of its own{where}: zero points"
        yield wrong.judged(says, sums @ fitted, fitted.size)


def clipped(wrong: WrongRows, x: np.ndarray, weight: np.ndarray) -> Component | None:
    """Weights whose size is cut: at so many deviations, or wherever it explains most.

    Args:
        weight: float64 [wrong columns, D].
    """
    error, size = wrong.error[:, wrong.columns], np.abs(weight)
    deviation = float(weight.std())
    limits = {float(times) * deviation: f" ({times:g} standard deviations)" for times in DEVIATIONS}
    limits |= dict.fromkeys(np.quantile(size[size > 0], QUANTILES).tolist() if size.any() else [], "")
    made = {limit: x @ (np.clip(weight, -limit, limit) - weight).T for limit in limits}
    best = min(made, key=lambda limit: float(((error - made[limit]) ** 2).sum()), default=None)
    if best is None or not made[best].any():
        return None
    return wrong.judged(f"{wrong.where}weights cut to a size of {best:.3g}{limits[best]}", made[best], 1)


def any_weight(wrong: WrongRows, x: np.ndarray) -> Component | None:
    """The error as what another weight makes of the same inputs: told where there are more rows than inputs."""
    error = wrong.error[:, wrong.columns]
    left, size, _ = np.linalg.svd(x, full_matrices=False)
    left = left[:, size > CUTOFF * size[0]]
    if left.shape[1] > INSIDE * len(x):
        return None
    says = f"{wrong.where}another weight, or other columns of what enters: the error is linear in it"
    return wrong.judged(says, left @ (left.T @ error), left.shape[1] * error.shape[1], INSIDE)
