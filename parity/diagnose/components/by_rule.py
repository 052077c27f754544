"""Whole numbers that follow a rule of their own: from what of the row, rounded to which multiple, they are counted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parity.compare.facts import Facts

LEAST, DISTINCT = 5, 3
"""Wrong rows that a rule has to make, and different numbers among them: it has one number of its own."""

BITS = {False: 12, True: 15}
"""What numbers have to tell, in bits, of a rule as it is and of one that rounds or adds. Of small drawn numbers (9,000
draws of five and six) as many follow some rule as if there were four: by chance one in a thousand, and one in 8,000."""

LATE = 2
"""Wrong numbers that have to be those of the round before, where all the right ones are as well."""

MULTIPLES = (2, 4, 8, 16, 32, 64, 128, 256)
"""Sizes of pages, tiles and windows that numbers are rounded to, or begin again at."""

SMALL = 2
"""What may be added to a rule."""


def in_rules(facts: Facts, right: np.ndarray, found: np.ndarray) -> str:
    """The first rule that makes every one of the wrong numbers `found` [R], `right` what is meant; '' where none does.

    Args:
        facts: of the wrong rows.
    """
    if right.ndim != 1 or len(found) < LEAST or len(np.unique(found)) < DISTINCT:
        return ""
    known = (len(found) - 1) * np.log2(float(np.ptp(found)) + 1)
    rules = [
        (rounded or int(left[0]) != 0, said, counted, int(left[0]))
        for said, values, rounded in _bases(facts, right)
        for counted, counts in _counts(facts)
        if (said or counted) and ((left := found - values - counts) == left[0]).all() and abs(int(left[0])) <= SMALL
    ]
    if not rules:
        return ""
    rounds_or_adds, base, counted, added = min(rules, key=lambda rule: rule[0])
    return _said(base, counted, added) if known >= BITS[rounds_or_adds] else ""


def round_late(facts: Facts, right: np.ndarray, found: np.ndarray) -> bool:
    """Whether all numbers [R], right and wrong ones, are those of the round before, where there is one with a row."""
    if right.ndim != 1:
        return False
    places = {key: place for place, key in enumerate(_keys(facts))}
    before = [places.get((prompt, round_ - 1, index), -1) for prompt, round_, index in _keys(facts)]
    known = np.array(before) >= 0
    late = np.array_equal(found, np.where(known, right[np.array(before)], right))
    return late and int((found != right).sum()) >= LATE


def _keys(facts: Facts) -> list[tuple[int, int, int]]:
    return list(zip(facts.prompt.tolist(), facts.round.tolist(), facts.index.tolist(), strict=True))


def _said(base: str, counted: str, added: int) -> str:
    parts = [base, counted, str(added) if added > 0 else ""]
    said = " plus ".join(filter(None, parts))
    return f"{said} less {-added}" if added < 0 else said


def _bases(facts: Facts, right: np.ndarray) -> Iterator[tuple[str, np.ndarray, bool]]:
    """What a number may be counted from, in words, its values, and whether they are rounded."""
    yield "", np.zeros_like(right), False
    for base, numbers in _known(facts, right):
        for number, (rounded, values) in enumerate(_roundings(numbers)):
            yield rounded.format(base), values, number > 0


def _known(facts: Facts, right: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """What is known of all rows."""
    depth = facts.known("depth")
    if (depth >= 0).all():
        yield "what is meant in the first masked row", right - depth
        yield "the position of the first masked row", facts.position - depth
    yield "what is meant", right
    yield "the row's position", facts.position
    yield "the position of the pass' first row", facts.position - facts.index
    for name, says in {"cached": "the cached rows", "prompts": "the prompt's length"}.items():
        if (facts.known(name) >= 0).all():
            yield says, facts.known(name)


def _roundings(numbers: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    yield "{}", numbers
    for size in MULTIPLES:
        yield f"{{}} modulo {size}", numbers % size
        yield f"{{}}, up to the next multiple of {size},", -(-numbers // size) * size
        yield f"{{}}, down to a multiple of {size},", numbers // size * size
        yield f"{{}} divided by {size}", numbers // size


def _counts(facts: Facts) -> Iterator[tuple[str, np.ndarray]]:
    """What is counted beside it."""
    yield "", np.zeros_like(facts.index)
    depth = facts.known("depth")
    if (depth >= 0).all():
        yield "the number of the masked row", depth
    yield "the row of the pass", facts.index
    yield "twice the row of the pass", 2 * facts.index
