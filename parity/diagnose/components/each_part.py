"""Parts of a product that each enter in a way of their own: heads that take values of groups in another order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from parity.diagnose.components.parts import Parts
from parity.diagnose.components.wrong import Component, WrongRows, best_of

NUMBERED = re.compile(r"(.* of group) (\d+)")
"""Changes that are alike but for a number, of which each part may have its own."""

MOST = 64
"""Members of such a family up to which all are made."""

TAKEN = 0.5
"""The least factor of a member that a part takes, where a fit has them all."""

NOTHING = 1e-3
"""A change is none where it is smaller than this share of the error."""

Numbered = dict[str, dict[int, np.ndarray]]
"""By what they say before the number: what would enter less what does, [R, D], by number."""


def kept(numbered: Numbered, says: str, change: np.ndarray) -> None:
    """Add a change to its family, where it is of one."""
    found = NUMBERED.fullmatch(says)
    if found and len(numbered.setdefault(found[1], {})) < MOST:
        numbered[found[1]][int(found[2])] = change


def in_each_part(wrong: WrongRows, numbered: Numbered, weight: np.ndarray, parts: Parts) -> Component | None:
    """Each part by the number that fits it best; None where none is better than what should be.

    Args:
        weight: [wrong columns, D].
    """
    return best_of(_by_number(wrong, says, members, weight, parts) for says, members in numbered.items())


def _by_number(
    wrong: WrongRows, says: str, members: dict[int, np.ndarray], weight: np.ndarray, parts: Parts
) -> Component | None:
    wide = [(first, last) for _, first, last in parts if last - first > 1]
    made = [
        [members[number][:, first:last] @ weight[:, first:last].T for number in sorted(members)] for first, last in wide
    ]
    table = np.array([change.ravel() for part in made for change in part])
    if not table.size or not np.isfinite(table).all():
        return None
    error = wrong.error[:, wrong.columns].ravel()
    table[np.linalg.norm(table, axis=1) < NOTHING * np.linalg.norm(error)] = 0.0  # the part's own number
    factors = np.linalg.lstsq(table @ table.T, table @ error, rcond=None)[0].reshape(len(wide), len(members))
    taken = [int(row.argmax()) if row.max() > TAKEN else None for row in factors]
    model = np.zeros_like(wrong.error[:, wrong.columns])
    for part, number in zip(made, taken, strict=True):
        model += 0.0 if number is None else part[number]
    others = sum(number is not None for number in taken)
    if others == 0:
        return None
    return wrong.judged(f"{wrong.where}{says}, head by head: {told(sorted(members), taken)}", model, others)


def told(numbers: Sequence[int], taken: Sequence[int | None]) -> str:
    """Which number each part takes; `-` for what should be, and the rule where it is simple."""
    said = ", ".join("-" if one is None else str(numbers[one]) for one in taken)
    most = 2 * sum(one is not None for one in taken) > len(taken)
    rule = next((rule for rule, of in _rules(len(taken), len(numbers)) if most and _fits(taken, of)), "")
    return f"{said} ({rule})" if rule else f"{said} (- as it should be)" if None in taken else said


def _fits(taken: Sequence[int | None], rule: Sequence[int]) -> bool:
    return all(one is None or one == other for one, other in zip(taken, rule, strict=True))


def _rules(parts: int, numbers: int) -> Iterator[tuple[str, list[int]]]:
    yield f"in turn, head modulo {numbers}", [part % numbers for part in range(parts)]
    yield "from the last to the first", [numbers - 1 - part * numbers // parts for part in range(parts)]
