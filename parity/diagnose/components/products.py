"""A stage that ends in a product: which head, expert, bias or input columns its error lies in."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol, TypeVar

import numpy as np

from parity.diagnose.components.columns import contraction, counting, entered, left_out
from parity.diagnose.components.drawn import in_drawn_weights
from parity.diagnose.components.each_part import NUMBERED, Numbered, in_each_part, kept
from parity.diagnose.components.elements import as_of_padding, vague
from parity.diagnose.components.few_rows import FewRows
from parity.diagnose.components.flushed import flushed
from parity.diagnose.components.frequencies import TurnedKeys
from parity.diagnose.components.in_heads import in_attention
from parity.diagnose.components.other_rows import of_other_rows
from parity.diagnose.components.parts import INSIDE, Parts, in_all_or_some, tiles_of
from parity.diagnose.components.quantised_weights import block_scales, clipped, codes, saturated, zero_points
from parity.diagnose.components.roundings import in_roundings
from parity.diagnose.components.tables import in_table
from parity.diagnose.components.weights import any_weight, in_weights
from parity.diagnose.components.wrong import FULL, Component, WrongRows, best_of

FOUND = 0.9
"""The share of the wrong rows led back to a product that has to arrive."""

SAID = 4
"""Changes that are listed where each row has its own."""


One = TypeVar("One")

Changed = Callable[[np.ndarray], np.ndarray]
"""From numbers of rows [r] to what would enter at these under one small change [r, D]."""


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
    def others(self) -> Callable[[], Iterator[tuple[str, Changed]]]:
        """What would enter under small changes: (what is changed, what makes x of some rows)."""
        ...

    @property
    def keys(self) -> Callable[[Sequence[int]], Sequence[TurnedKeys]] | None:
        """Makes the keys that some rows, by number, attend to; None where the product is not attention's."""
        ...

    @property
    def beside(self) -> Callable[[], Iterator[tuple[str, np.ndarray]]]:
        """Other weights [C, D] that might stand in its place: (whose, weight)."""
        ...

    @property
    def table(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Where ids choose rows: (ids [R], the rows of all ids [V, C])."""
        ...

    @property
    def places(self) -> np.ndarray | None:
        """Which rows of a cache they are, (round, position) [R, 2]; None where they are all of the stage's."""
        ...

    @property
    def inside(self) -> str:
        """What the rows of the product are called, where something lies between them and the stage's."""
        ...

    @property
    def led(self) -> int | None:
        """Rows that are led back at the most; None for all."""
        ...

    @property
    def back(self) -> Callable[[np.ndarray, np.ndarray], np.ndarray] | None:
        """From the stage's rows and their numbers to the rows of the product, where something lies between them."""
        ...


def in_products(
    wrong: WrongRows, product: StageProduct, check: Callable[[], None] = lambda: None
) -> Iterator[Component | None]:
    """Every reading, what takes least time first; `check` raises where the time is up."""
    x, parts = product.x[wrong.numbers], product.parts
    others = _in_time(product.others(), check)
    if product.table is not None:
        yield from in_table(wrong, product.table)
    if product.weight is None:
        changes = ((says, (made(wrong.numbers) - x)[:, wrong.columns]) for says, made in _told(wrong, product, others))
        turned: list[tuple[str, np.ndarray]] = []
        yield best_of(wrong.judged(f"{wrong.where}{says}", made, 0) for says, made in _kept(changes, turned))
        yield _row_by_row(wrong, turned)
        return
    weight = product.weight[wrong.columns].astype(np.float64)
    held = [(name, x[:, first:last] @ weight[:, first:last].T) for name, first, last in parts]
    first_bias = bias_at(product)
    product_alone = ("the product but for its bias", x[:, :first_bias] @ weight[:, :first_bias].T)
    alone = [product_alone] if all(last - first == 1 for _, first, last in parts) else []
    whole = (*_of_each_kind(held), *_of_each_number(held))
    yield best_of(_scaled(wrong, name, part) for name, part in (*held, *whole))
    yield best_of(_scaled(wrong, name, part, first_bias) for name, part in alone)
    yield best_of(_scaled_by_row(wrong, name, part) for name, part in alone)
    yield left_out(wrong, x, weight, parts if not alone else [("", 0, first_bias), *parts])
    yield counting(wrong, x, weight)
    yield contraction(wrong, x, weight, parts)
    yield _shares(wrong, [part for name, part in held if part.any() and not part.all()])
    yield best_of(block_scales(wrong, x, weight, parts))
    inner = slice(first_bias)
    yield best_of(
        (
            *zero_points(wrong, x, parts),
            clipped(wrong, x, weight),
            codes(wrong, x[:, inner], weight[:, inner]),
            *saturated(wrong, x[:, inner], weight[:, inner]),
            *flushed(wrong, x[:, inner], weight[:, inner]),
        )
    )
    yield best_of(_in_time(in_roundings(wrong, x, weight, parts, wrong.passes, x.shape[1] - first_bias), check))
    yield from in_weights(wrong, x, product.weight.astype(np.float64), parts, product.beside())
    if product.keys is not None:
        heads = [(name, part) for (name, part), (_, first, last) in zip(held, parts, strict=True) if last - first > 1]
        yield from in_attention(wrong, weight[:, :first_bias], product.keys(wrong.numbers.tolist()), heads)
    numbered: Numbered = {}
    runs = parts if not alone else tiles_of(first_bias)
    told = _told(wrong, product, chain(others, of_other_rows(wrong, product.x)), runs)
    entering = _by_number(((says, made(wrong.numbers) - x) for says, made in told), numbered)
    yield best_of(_entered_otherwise(wrong, says, change, weight, runs) for says, change in entering)
    yield in_each_part(wrong, numbered, weight, parts)
    yield any_weight(wrong, x)
    yield best_of(_entered(wrong, weight[:, first:last], name) for name, first, last in parts)
    yield entered(wrong, weight, parts)
    yield in_drawn_weights(wrong, x, weight)


Changes = Iterable[tuple[str, np.ndarray]]


def _by_number(changes: Changes, numbered: Numbered) -> Iterator[tuple[str, np.ndarray]]:
    """The same, those of which each part may have its own kept."""
    for says, change in changes:
        kept(numbered, says, change)
        yield says, change


def _kept(changes: Changes, turned: list[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    """The same, those that turn rows to other positions kept."""
    for says, made in changes:
        if says.startswith(TURNED):
            turned.append((says, made))
        yield says, made


def _row_by_row(wrong: WrongRows, changes: Sequence[tuple[str, np.ndarray]]) -> Component | None:
    """Each row by the change that fits it best."""
    if not changes:
        return None
    error, made = wrong.error[:, wrong.columns], np.stack([change for _, change in changes])
    best = ((made - error) ** 2).sum(axis=2).argmin(axis=0)
    counted = Counter(changes[one][0] for one in best.tolist()).most_common(SAID)
    told = ", ".join(f"{says} ({rows} rows)" for says, rows in counted)
    return wrong.judged(f"{wrong.where}row by row {told}", made[best, np.arange(len(best))], len(best))


def bias_at(product: StageProduct) -> int:
    """The column behind the last of what is no bias."""
    return int(product.x.shape[1]) - sum(last - first == 1 for _, first, last in product.parts)


def _in_time(others: Iterator[One], check: Callable[[], None]) -> Iterator[One]:
    for each in others:
        check()
        yield each


TURNED = "turned"
"""How changes begin of which each row may have its own."""


def _told(
    wrong: WrongRows, product: StageProduct, others: Iterator[tuple[str, Changed]], parts: Parts = ()
) -> Iterator[tuple[str, Changed]]:
    """Those that a few rows do not refuse, as a whole or in some of the parts."""
    few = FewRows.of(wrong)
    if few.all:
        yield from others
        return
    x, numbers = product.x[few.numbers], few.numbers
    weight = None if product.weight is None else product.weight[wrong.columns].astype(np.float64)
    for says, made in others:
        change = made(numbers) - x
        if weight is None:
            refused = not says.startswith(TURNED) and few.refuse(change[:, wrong.columns])
        else:
            spans = [*((first, last) for _, first, last in parts), (0, weight.shape[1])]
            made_of = [change[:, first:last] @ weight[:, first:last].T for first, last in spans]
            refused = not NUMBERED.fullmatch(says) and few.refuse_any_of(made_of)
        if not refused:
            yield says, made


def led_back(wrong: WrongRows, product: StageProduct) -> WrongRows | None:
    """The rows of the product that the stage's wrong rows come of; None where most of them are not found."""
    if product.back is None or product.weight is None:
        return wrong
    count = len(wrong.numbers)
    some = np.unique(np.linspace(0, count - 1, min(count, product.led or count)).astype(int))
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
    tail = wrong.tail if golden.shape[1] == wrong.golden.shape[1] else golden.shape[1:]
    sides = golden[found], device[found], off[found]
    return WrongRows(rows, *sides, tail, every, numbers[found], wrong.precision).in_words()


def _scaled(wrong: WrongRows, name: str, part: np.ndarray, width: int = 0) -> Component | None:
    """One part with another factor; `width` is that of what enters, where the part is all that is made of it."""
    size = float((part**2).sum())
    if size == 0:
        return None
    factor = 1 + float((part * wrong.error[:, wrong.columns]).sum()) / size
    found = wrong.judged(f"{wrong.where}{name} {times(factor)}", (factor - 1) * part, 1)
    return vague(found) if width and as_of_padding(factor, width) else found


def _scaled_by_row(wrong: WrongRows, name: str, part: np.ndarray) -> Component | None:
    """One part with a factor of each row's own: what a norm divides by, where a bias is added behind."""
    sizes = np.maximum((part**2).sum(axis=1, keepdims=True), 1e-300)
    factors = (part * wrong.error[:, wrong.columns]).sum(axis=1, keepdims=True) / sizes
    told = f"each row has its own factor ({1 + factors.min():.3g} to {1 + factors.max():.3g}): what a norm divides by"
    return wrong.judged(f"{wrong.where}{name}: {told}", factors * part, len(factors))


def _of_each_kind(held: Sequence[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    """All parts of one kind together: every head, every expert's bias."""
    kinds: dict[str, list[np.ndarray]] = {}
    for name, part in held:
        kinds.setdefault(re.sub(r"(\w+) \d+$", r"every \1", name), []).append(part)
    yield from ((kind, np.sum(parts, axis=0)) for kind, parts in kinds.items() if len(parts) > 1)


def _of_each_number(held: Sequence[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    """All parts of one number together: of an expert what its weight gives and its bias."""
    numbers: dict[str, list[np.ndarray]] = {}
    for name, part in held:
        if found := re.search(r"\bof (\w+ \d+)$", name):
            numbers.setdefault(f"what {found[1]} gives", []).append(part)
    yield from ((whose, np.sum(parts, axis=0)) for whose, parts in numbers.items() if len(parts) > 1)


def times(factor: float) -> str:
    if abs(factor) < FULL:
        return "is missing"
    return "counts twice" if abs(factor - 2) < FULL else f"counts {factor:.4g} times"


def _entered_otherwise(
    wrong: WrongRows, says: str, change: np.ndarray, weight: np.ndarray, parts: Parts
) -> Component | None:
    """What enters is changed, in all parts or in some of them."""
    if not np.isfinite(change).all():
        return None
    made = [(name, change[:, first:last] @ weight[:, first:last].T) for name, first, last in parts]
    return in_all_or_some(wrong, says, change @ weight.T, made)


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
