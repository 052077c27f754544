"""A stage that ends in a product: which head, expert, bias or input columns its error lies in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import ml_dtypes
import numpy as np

from parity.diagnose.components.wrong import Component, WrongRows, ranges_of

FLOATS = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
MANY = 16
"""Parts of which every two are tried against each other."""

DEAR = 1e-3
"""Share of the error that each number of a reading's own has to earn."""

RUNS = 4
"""Runs of neighbouring columns that are tried."""

FULL = 0.02
"""A factor this near to 0, 1 or 2 is that number: weights in bfloat16 and noise move a fitted one by less."""

WIDE = 1 << 12
"""Input columns of a part over which all runs are tried: a table of 128 MB."""

LED, FOUND = 48, 0.9
"""Wrong rows that are led back to a product, evenly chosen, and the share of them that has to arrive."""

CERTAIN, AHEAD = 50.0, 2.0
"""Squared standard errors by which a part that is faintly off has to be off, and its lead over the next."""

INSIDE = 0.7
"""Directions of a row that one part may span: beyond it nearly any error lies within."""


class StageProduct(Protocol):
    """What a stage's rows are a product of: y [R, C] = x [R, D] times weight [C, D]; `parts` names runs of D."""

    @property
    def x(self) -> np.ndarray:
        """What enters."""
        ...

    @property
    def weight(self) -> np.ndarray | None:
        """By what it is multiplied; None where the rows are no product, and `x` and `others` are they."""
        ...

    @property
    def parts(self) -> Sequence[tuple[str, int, int]]:
        """(name, first column, behind the last)."""
        ...

    @property
    def others(self) -> Callable[[], Iterator[tuple[str, np.ndarray]]]:
        """What would enter under small changes: (what is changed, x)."""
        ...

    @property
    def back(self) -> Callable[[np.ndarray, np.ndarray], np.ndarray] | None:
        """From the stage's rows and their numbers to the rows of the product, where something lies between them."""
        ...


def in_products(wrong: WrongRows, product: StageProduct) -> Iterator[Component | None]:
    """Every reading, the one with the fewest numbers of its own first."""
    x, parts = product.x[wrong.numbers], product.parts
    if product.weight is None:
        yield _best(
            wrong.judged(f"{wrong.where}{says}", (other[wrong.numbers] - x)[:, wrong.columns], 0)
            for says, other in product.others()
        )
        return
    weight = product.weight[wrong.columns].astype(np.float64)
    held = [(name, x[:, first:last] @ weight[:, first:last].T) for name, first, last in parts]
    yield _best(_scaled(wrong, name, part) for name, part in held)
    yield _left_out(wrong, x, weight, parts or [("", 0, x.shape[1])])
    yield _best(
        _entered_otherwise(wrong, says, other[wrong.numbers] - x, weight, parts) for says, other in product.others()
    )
    yield _best(_rounded(wrong, x, weight, parts))
    yield _crossed(wrong, x, weight, parts)
    yield _shares(wrong, [part for name, part in held if part.any() and not part.all()])
    yield _contraction(wrong, x, weight, parts)
    yield _best(_entered(wrong, weight[:, first:last], name) for name, first, last in parts)


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
    return Component(f"{name} {_times(1 + factor)}", gain / total, float(rest), numbers=1)


def led_back(wrong: WrongRows, product: StageProduct) -> WrongRows | None:
    """The rows of the product that the stage's wrong rows come of; None where most of them are not found."""
    if product.back is None or product.weight is None:
        return wrong
    some = np.unique(np.linspace(0, len(wrong.numbers) - 1, LED).astype(int))
    numbers, noise = (
        wrong.numbers[some],
        wrong.noise[some] * np.random.default_rng(0).choice((-1, 1), wrong.golden.shape[1]),
    )
    golden = product.x[numbers] @ product.weight.T.astype(np.float64)
    device, floor = (product.back(rows, numbers) for rows in (wrong.device[some], wrong.golden[some] + noise))
    found = np.isfinite(device).all(axis=1) & np.isfinite(floor).all(axis=1)
    if found.mean() < FOUND:
        return None
    off = np.sqrt(np.mean((floor - golden) ** 2, axis=1, keepdims=True))
    every = np.ones(golden.shape[1], bool)
    rows = wrong.rows.take(some[found])
    return WrongRows(rows, golden[found], device[found], off[found], golden.shape[1:], every, numbers[found]).in_words()


def _best(found: Iterator[Component | None]) -> Component | None:
    return max(filter(None, found), key=preferred, default=None)


def preferred(one: Component) -> tuple[bool, float]:
    """Larger for the reading that is chosen: one that leaves nothing, then what it explains, less for each number."""
    return one.whole, one.explained - one.numbers * DEAR


def _scaled(wrong: WrongRows, name: str, part: np.ndarray) -> Component | None:
    """One part with another factor."""
    size = float((part**2).sum())
    if size == 0:
        return None
    factor = 1 + float((part * wrong.error[:, wrong.columns]).sum()) / size
    return wrong.judged(f"{wrong.where}{name} {_times(factor)}", (factor - 1) * part, 1)


def _times(factor: float) -> str:
    if abs(factor) < FULL:
        return "is missing"
    return "counts twice" if abs(factor - 2) < FULL else f"counts {factor:.4g} times"


def _left_out(
    wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Sequence[tuple[str, int, int]]
) -> Component | None:
    """A run of input columns of one part that is left out: the best of all runs, by sums over a table of products."""
    error, best = wrong.error[:, wrong.columns], (0.0, 0, 0, "")
    for name, first, last in parts:
        if not 1 < last - first <= WIDE:
            continue
        inside = slice(first, last)
        gram = (x[:, inside].T @ x[:, inside]) * (weight[:, inside].T @ weight[:, inside])
        met = np.concatenate(([0.0], np.cumsum(((x[:, inside].T @ error) * weight[:, inside].T).sum(axis=1))))
        table = np.zeros((last - first + 1,) * 2)
        table[1:, 1:] = gram.cumsum(axis=0).cumsum(axis=1)
        whole = np.diag(table)
        gain = 2 * (met[None] - met[:, None]) + (whole[None] - table - table.T + whole[:, None])
        gain = np.where(np.arange(len(gain))[:, None] < np.arange(len(gain)), gain, np.inf)
        start, end = map(int, np.unravel_index(gain.argmin(), gain.shape))
        if gain[start, end] < best[0]:
            best = float(gain[start, end]), first + start, first + end, name
    gained, start, end, name = best
    if gained == 0.0:
        return None
    at = next(first for of, first, _ in parts if of == name)
    says = f"{wrong.where}inputs {start - at} to {end - at - 1}{f' of {name}' if name else ''} are left out"
    return wrong.judged(says, -(x[:, start:end] @ weight[:, start:end].T), 2)


def _entered_otherwise(
    wrong: WrongRows, says: str, change: np.ndarray, weight: np.ndarray, parts: Sequence[tuple[str, int, int]]
) -> Component | None:
    """What enters is changed, in all parts or in some of them."""
    if not np.isfinite(change).all():
        return None
    made = [(name, change[:, first:last] @ weight[:, first:last].T) for name, first, last in parts]
    return _in_all_or_some(wrong, says, change @ weight.T, made)


def _in_all_or_some(
    wrong: WrongRows, says: str, model: np.ndarray, made: Sequence[tuple[str, np.ndarray]]
) -> Component | None:
    """A change of all parts, or where that leaves something of some of them."""
    whole = wrong.judged(f"{wrong.where}{says}", model, 0)
    return whole if whole and whole.whole else _in_some(wrong, says, made) or whole


def _in_some(wrong: WrongRows, says: str, made: Sequence[tuple[str, np.ndarray]]) -> Component | None:
    """A change of some parts only: those that a fit takes as they are rather than not at all."""
    error, made = wrong.error[:, wrong.columns], [(name, part) for name, part in made if part.any()]
    if not made:
        return None
    gram = np.array([[float((one * other).sum()) for _, other in made] for _, one in made])
    met = np.array([float((part * error).sum()) for _, part in made])
    factors = np.linalg.lstsq(gram, met, rcond=None)[0]
    those = [(name, part) for (name, part), factor in zip(made, factors, strict=True) if factor > 0.5]
    if not those:
        return None
    named = ", ".join(name for name, _ in those)
    told = f"{says} ({named})" if says else named
    model = np.sum([part for _, part in those], axis=0)
    found = wrong.judged(f"{wrong.where}{told}", model, len(made))
    return found and replace(found, numbers=len(those))


def _rounded(
    wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Sequence[tuple[str, int, int]]
) -> Iterator[Component | None]:
    """The weight in fewer bits, of all parts or of some."""
    step = np.abs(weight).max(axis=1, keepdims=True) / 127
    coarse = {f"fp8 ({one.__name__.removeprefix('float8_').removesuffix('fn')})": weight.astype(one) for one in FLOATS}
    coarse["int8 by row"] = np.round(weight / np.maximum(step, 1e-300)) * step
    for name, low in coarse.items():
        change = low.astype(np.float64) - weight
        made = [(part, x[:, first:last] @ change[:, first:last].T) for part, first, last in parts]
        yield _in_all_or_some(wrong, f"the weight in {name}", x @ change.T, made)


def _crossed(
    wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Sequence[tuple[str, int, int]]
) -> Component | None:
    """Parts that take another part's input."""
    alike = [part for part in parts if part[2] - part[1] == parts[0][2] - parts[0][1] > 1]
    if not 1 < len(alike) <= MANY:
        return None
    made = [
        (
            f"{name} takes what {other} should",
            (x[:, one : one + last - first] - x[:, first:last]) @ weight[:, first:last].T,
        )
        for name, first, last in alike
        for other, one, _ in alike
        if one != first
    ]
    return _in_some(wrong, "", made)


def _shares(wrong: WrongRows, parts: Sequence[np.ndarray]) -> Component | None:
    """Parts that some rows have, each row's with factors of its own: the weights of experts."""
    if not parts:
        return None
    error, numbers = wrong.error[:, wrong.columns], 0
    model = np.zeros_like(error)
    for row in range(len(error)):
        held = np.stack([part[row] for part in parts if part[row].any()] or [np.zeros(error.shape[1])], axis=1)
        model[row] = held @ np.linalg.lstsq(held, error[row], rcond=None)[0]
        numbers += held.shape[1]
    return wrong.judged(f"{wrong.where}what the chosen experts weigh, row by row", model, numbers)


def _contraction(
    wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Sequence[tuple[str, int, int]]
) -> Component | None:
    """The columns of the input whose contributions differ: those that lie in what the error spans over the rows."""
    error = wrong.error[:, wrong.columns] / wrong.noise
    left, size, _ = np.linalg.svd(error, full_matrices=False)
    edge = 1.5 * (np.sqrt(error.shape[0]) + np.sqrt(error.shape[1]))  # the largest of noise alone, and a half
    rank = int((size > edge).sum())
    if not 0 < rank <= min(error.shape) // 2:
        return None
    columns = x / np.maximum(np.linalg.norm(x, axis=0), 1e-300)
    inside = np.linalg.norm(left[:, :rank].T @ columns, axis=0)
    return _best(_contributing(wrong, x, weight, parts, chosen) for chosen in _candidates(inside, rank))


def _candidates(inside: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """Sets of so many columns [D] that may span the error: the best runs of neighbours, and the best ones anywhere.

    Columns of a hidden state are much alike, so that the best one by one need not be those that belong together.
    """
    places = np.arange(len(inside))
    means = np.convolve(inside, np.ones(count), "valid")
    for start in np.argsort(-means)[:RUNS]:
        yield (places >= start) & (places < start + count)
    yield np.isin(places, np.argsort(-inside)[:count])


def _contributing(
    wrong: WrongRows,
    x: np.ndarray,
    weight: np.ndarray,
    parts: Sequence[tuple[str, int, int]],
    chosen: np.ndarray,
) -> Component | None:
    """The error as what these columns of the input contribute with another weight."""
    part = x[:, chosen]
    fitted = np.linalg.lstsq(part, wrong.error[:, wrong.columns], rcond=None)[0]
    own = weight[:, chosen].T
    missing = np.linalg.norm(fitted + own) < 0.1 * np.linalg.norm(own)
    of = [name for name, first, last in parts if chosen[first:last].any()]
    told = f"input {ranges_of(chosen, chosen.shape) or 'columns here and there'}"
    told += f" ({', '.join(of[:3])})" if of else ""
    says = f"{wrong.where}{told} are missing" if missing else f"{wrong.where}the weight of {told}"
    return wrong.judged(says, part @ fitted, fitted.size)


def _entered(wrong: WrongRows, weight: np.ndarray, name: str) -> Component | None:
    """The error as other values of one part, row by row: all that the part's weight [C, d] can make of any."""
    if weight.shape[1] > INSIDE * weight.shape[0] or weight.shape[1] == 1:
        return None
    basis = np.linalg.svd(weight, full_matrices=False)[0]
    error = wrong.error[:, wrong.columns]
    return wrong.judged(
        f"{wrong.where}{name}: its values, before they are multiplied",
        error @ basis @ basis.T,
        error.shape[0] * basis.shape[1],
        INSIDE,
    )
