"""Whole numbers that follow a rule of their own: from what of the row, rounded to which multiple, they are counted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parity.compare.facts import Facts

LEAST, DISTINCT = 5, 3
"""Wrong rows that a rule has to make, and different numbers among them: it has one number of its own."""

BITS = (12, 20)
"""What numbers have to tell, in bits, of a rule as it is, of which there are tens, and of one of thousands: with seven
bits less some rule would make them by chance."""

Rule = tuple[str, str, int]
"""From what it is counted, what is counted, and what is added."""

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
        (rounded.format(base) if base else "", counted, int(left[0]))
        for base, numbers in _bases(facts, right)
        for rounded, values in _roundings(numbers)
        for counted, counts in _counts(facts)
        if (base or counted) and ((left := found - values - counts) == left[0]).all() and abs(int(left[0])) <= SMALL
    ]
    best = min(rules, key=_is_complex, default=None)
    return _said(*best) if best and known >= BITS[_is_complex(best)] else ""


def _is_complex(rule: Rule) -> bool:
    """Whether a number is rounded, or something is added."""
    return rule[2] != 0 or any(word in rule[0] for word in ("modulo", "multiple", "divided"))


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
    parts = [base, counted, str(added) if added > 0 or not (base or counted) else ""]
    said = " plus ".join(filter(None, parts))
    return f"{said} less {-added}" if added < 0 else said


def _bases(facts: Facts, right: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """What a number may be counted from, in words, and its values; those that are known of all rows."""
    depth = facts.known("depth")
    yield "", np.zeros_like(right)
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
