"""Positions, slots, lengths and ids that are off by what grows with another number: rounds, rows, accepted drafts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from parity.compare.facts import Facts
from parity.compare.rows import StageRows

COUNTS = {
    "round": "round",
    "row": "row of the pass",
    "depth": "masked row of the pass",
    "committed": "committed row of the pass",
    "accepted": "draft accepted in the round before",
    "accepts": "draft accepted in the round",
    "cached": "cached row",
    "position": "position",
}
"""Facts that a number may grow with, the likeliest first, and what one more of each is called."""

DISTINCT = 3
"""Values of a fact that a line has to go through: it goes through any two."""

FAR = 16
"""Places in the text that an id may be taken from, before and behind its own."""


@dataclass(frozen=True)
class StepLine:
    """Off by `step` for each one of a fact beyond `zero`, or below it."""

    fact: str
    step: int
    zero: float
    below: bool

    def said(self, of_text: bool) -> str:
        """In words; of ids that are taken from elsewhere in the text, or of numbers."""
        unit = " places in the text" if of_text else ""
        step = -self.step if self.below else self.step
        return f"{step:+d}{unit} for each {COUNTS[self.fact]} {'below' if self.below else 'beyond'} {self.zero:g}"


def in_counts(facts: Facts, rows: StageRows, wrong: np.ndarray) -> str:
    """By what the wrong rows [R] of an exact stage are off, in words; '' where no line has all of them."""
    if rows.golden.ndim != 1:
        return ""
    apart = (rows.device.astype(np.int64) - rows.golden).tolist()
    numbers = next(_lines(facts, [{one} for one in apart], wrong, np.ones_like(wrong)), None)
    if numbers is not None:
        return numbers.said(False)
    if rows.named.stage.part != "input_ids":
        return ""
    known = (facts.round == 0) | (facts.index < facts.committed) | (facts.committed < 0)
    if (wrong & ~known).any():
        return ""
    taken = next(_lines(facts, _places(rows, known), wrong, known), None)
    return "" if taken is None else f"ids of others: {taken.said(True)}"


def _lines(facts: Facts, due: Sequence[set[int]], wrong: np.ndarray, known: np.ndarray) -> Iterator[StepLine]:
    """Lines that go through one of the numbers due of every wrong row, and of the right rows beside them that are
    `known`: 0 is due there."""
    for name in COUNTS:
        values = facts.known(name)
        for which in (wrong | (facts.round > 0), wrong):
            yield from _of_fact(name, values, due, which & known & (values >= 0), wrong)


def _of_fact(
    name: str, values: np.ndarray, due: Sequence[set[int]], which: np.ndarray, wrong: np.ndarray
) -> Iterator[StepLine]:
    places = np.flatnonzero(which)
    if (wrong & ~which).any() or len(np.unique(values[places])) < DISTINCT:
        return
    marks = sorted(places.tolist(), key=lambda place: len(due[place]))
    first = marks[0]
    other = next(place for place in marks if values[place] != values[first])
    for one, two in product(due[first], due[other]):
        step, left = divmod(two - one, int(values[other] - values[first]))
        if left or not step:
            continue
        at = one - step * int(values[first])
        if all(step * int(values[place]) + at in due[place] for place in places.tolist()):
            yield StepLine(name, step, -at / step, bool((values[wrong] < -at / step).all()))


def _places(rows: StageRows, known: np.ndarray) -> list[set[int]]:
    """How far off in the text each row's id may have been taken from, 0 where it is its own; the `known` rows tell."""
    texts: dict[int, dict[int, int]] = {}
    own = zip(rows.prompt[known].tolist(), rows.position[known].tolist(), rows.golden[known].tolist(), strict=True)
    for prompt, position, token in own:
        texts.setdefault(prompt, {}).setdefault(position, token)
    made = []
    for prompt, position, token in zip(rows.prompt.tolist(), rows.position.tolist(), rows.device.tolist(), strict=True):
        text = texts[prompt]
        made.append({step for step in range(-FAR, FAR + 1) if text.get(position + step) == token})
    return made
