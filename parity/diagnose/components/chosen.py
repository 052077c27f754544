"""Choices by another rule: what is never taken, the rank that is, ids that are off by range, and groups of experts.

A rule is said where it makes the device's choices from the golden's scores: every wrong one, and for most rules nearly
all of them, right ones too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from parity.compare.facts import Facts
from parity.compare.rows import StageRows, stage_rows
from parity.compare.scores import scores_of
from parity.compare.vocabulary import DraftVocabulary, draft_vocabulary
from parity.diagnose.components.chosen_sets import FEW, NEARLY, rules_of_sets
from parity.diagnose.components.numbered import by_lanes
from parity.diagnose.components.sampled import drawn
from parity.diagnose.components.wrong import Component
from parity.errors import Inconclusive
from parity.golden.views import DumpView, TrustedGolden
from parity.stages import DRAFT_TOKENS

PIECES = 3
"""Ranges of ids, each off by a number of its own, at the most."""

NARROW = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
"""Formats of which whole numbers beyond 256, or 2,048, are rounded."""

WHOLE = 0.9
"""A rule that looks at more than this share of the columns looks at all of them."""


@dataclass(frozen=True)
class Chosen:
    """Choices of one of many: scores [R, V], the golden's and the device's columns [R], -1 where it has none.

    `ids` are the golden's and the device's ids [R], `tokens` [V] the id of each column, `places` [R] the number of each
    row in its pass.
    """

    scores: np.ndarray
    mine: np.ndarray
    theirs: np.ndarray
    ids: tuple[np.ndarray, np.ndarray]
    tokens: np.ndarray
    places: np.ndarray

    @property
    def wrong(self) -> np.ndarray:
        """Which rows [R] differ."""
        return np.asarray(self.ids[0] != self.ids[1])


def in_choices(golden: TrustedGolden, run: DumpView, rows: StageRows, told: bool, facts: Facts) -> Component | None:
    """The rule by which the device chose; None where none is found, or the stage is no choice by scores.

    Args:
        told: whether all rows are wrong, or a condition tells which. Another rank alone is no rule of some rows that
            nothing sets apart: what is second there is where two scores are close.
        facts: of the rows.
    """
    name = scores_of(rows.named.name)
    named = golden.declared.get(name or "")
    scores = stage_rows(golden, golden, named, device="float32", mode="local") if named else None
    if scores is None or len(scores.golden) != len(rows.golden):
        return None
    if rows.golden.ndim > 1:
        return _first(rules_of_sets(scores.golden, rows.golden, rows.device, told, facts.passes))
    vocabulary = DraftVocabulary(np.arange(scores.golden.shape[1]), "every column is its id")
    if rows.named.name == DRAFT_TOKENS:
        try:
            vocabulary = draft_vocabulary(golden, scores, rows)
        except Inconclusive:
            return None
    ids = rows.golden.astype(np.int64), rows.device.astype(np.int64)
    mine, theirs = map(vocabulary.columns, ids)
    return _first(rules_of_one(Chosen(scores.golden, mine, theirs, ids, vocabulary.tokens, facts.index), told))


def _first(rules: Iterator[str]) -> Component | None:
    says = next(rules, "")
    return Component(says, 1.0, None) if says else None


def rules_of_one(chosen: Chosen, told: bool) -> Iterator[str]:
    """Rules that make every choice of the device, the most telling first; `told`: see `in_choices`."""
    if chosen.wrong.sum() < FEW:
        return
    yield from _modulo(chosen)
    yield from _narrow(chosen)
    yield from _mapped(chosen)
    yield from _by_range(chosen)
    yield from filter(None, [by_lanes(chosen.mine, chosen.theirs, len(chosen.tokens))])
    if (chosen.theirs >= 0).all() and (chosen.mine >= 0).all():
        if _makes(np.abs(chosen.scores), chosen):
            yield "the largest magnitude, whatever its sign"
        looked = [(says, taken) for says, taken in _without_repeats(chosen) if _makes_all(taken, chosen)]
        looked.sort(key=lambda rule: -int((rule[1] == chosen.theirs).sum()))
        yield from (f"the best that is not {says}" for says, _ in looked)
        yield from _never(chosen)
        yield from _inside(chosen)
        yield from _of_rank(chosen) if told else ()
        yield from _of_ranks(chosen)
        yield from filter(None, [drawn(chosen.scores, chosen.theirs)])


def _modulo(chosen: Chosen) -> Iterator[str]:
    """Ids that wrap."""
    right, device = chosen.ids
    for size in range(1 + int(device.max()), int(right.max()) + 1):
        if (right % size == device).all():
            yield f"the id modulo {size}" if size > 1 else "id 0 always"
            return


def _narrow(chosen: Chosen) -> Iterator[str]:
    """Ids, or columns, in a format that does not hold all of them."""
    for what, right, device in (("id", *chosen.ids), ("column", chosen.mine, chosen.theirs)):
        for name, kept in NARROW.items():
            held = right.astype(kept).astype(np.int64)
            if (right >= 0).all() and (
                np.minimum(held, right.max() if what == "id" else len(chosen.tokens) - 1) == device
            ).all():
                yield f"the {what} in {name}"
                return


def _mapped(chosen: Chosen) -> Iterator[str]:
    """Columns that are taken for ids, or get the offset of another column."""
    known, device = chosen.mine[chosen.wrong], chosen.ids[1][chosen.wrong]
    if (chosen.tokens == np.arange(len(chosen.tokens))).all() or (known < 0).any():
        return
    if (device == known).all():
        yield "the column of the scores, not the id that it stands for"
        return
    offsets = chosen.tokens - np.arange(len(chosen.tokens))
    before = np.roll(chosen.mine, 1)[chosen.wrong]
    if (before >= 0).all() and (known + offsets[before] == device).all():
        yield "the id by the offset of the choice before"
        return
    for step in sorted(range(1 - len(offsets), len(offsets)), key=abs):
        other = known + step
        if step and ((other >= 0) & (other < len(offsets))).all() and (known + offsets[other] == device).all():
            where = "before" if step < 0 else "behind"
            yield f"the id by the offset of {abs(step)} columns {where}"
            return


def _by_range(chosen: Chosen) -> Iterator[str]:
    """Ranges of columns, or of ids, of which each is off by a number of its own."""
    pairs = [("column", chosen.mine, chosen.theirs), ("id", *chosen.ids)]
    for what, right, device in pairs:
        wrong = chosen.wrong & (right >= 0) & (device >= 0)
        if wrong.sum() < chosen.wrong.sum():
            continue
        order = np.argsort(right[wrong], kind="stable")
        places, steps = right[wrong][order], (device - right)[wrong][order]
        pieces = np.split(np.arange(len(steps)), np.flatnonzero(np.diff(steps)) + 1)
        if len(pieces) <= PIECES and len(steps) >= FEW * len(pieces):
            told = ", ".join(f"{steps[one[0]]:+d} from {places[one[0]]} to {places[one[-1]]}" for one in pieces)
            yield f"the {what} is off by range: {told}"
            return


def _never(chosen: Chosen) -> Iterator[str]:
    """A run of columns that is never taken: the best of the others is."""
    lost = chosen.mine[chosen.wrong]
    first, last = int(lost.min()), int(lost.max())
    scores = chosen.scores.copy()
    scores[:, first : last + 1] = -np.inf
    if last - first < WHOLE * scores.shape[1] and _makes(scores, chosen):
        yield f"columns {first} to {last} are never chosen" if last > first else f"column {first} is never chosen"


DEEPEST = 9
"""Best columns of a row that rows before it may have taken: more drafts than a pass has."""


def _without_repeats(chosen: Chosen) -> Iterator[tuple[str, np.ndarray]]:
    """The best column of each row but for what rows before it in its pass have, [R], each with what that is."""
    ranked = np.argsort(-chosen.scores, axis=1, kind="stable")[:, :DEEPEST]
    for says, of in (
        ("the choice of the row before", lambda made, row, place: made[row - 1 : row]),
        ("the best of the row before", lambda made, row, place: [int(ranked[row - 1, 0])]),
        ("a choice of a row before", lambda made, row, place: made[row - place : row]),
    ):
        made: list[int] = []
        for row, (best, place) in enumerate(zip(ranked.tolist(), chosen.places.tolist(), strict=True)):
            left = [one for one in best if not place or one not in of(made, row, place)]
            made.append(left[0] if left else best[0])
        yield says, np.array(made)


def _makes_all(taken: np.ndarray, chosen: Chosen) -> bool:
    """Whether these columns [R] are the device's choices: all that are wrong, and nearly all."""
    same = taken == chosen.theirs
    return bool(same[chosen.wrong].all() and same.mean() >= NEARLY)


def _inside(chosen: Chosen) -> Iterator[str]:
    """A run of columns outside of which nothing is taken."""
    first, last = int(chosen.theirs.min()), int(chosen.theirs.max())
    scores = np.full_like(chosen.scores, -np.inf)
    scores[:, first : last + 1] = chosen.scores[:, first : last + 1]
    if last - first < WHOLE * scores.shape[1] and _makes(scores, chosen):
        yield f"the best of columns {first} to {last} alone"


def _makes(scores: np.ndarray, chosen: Chosen) -> bool:
    """Whether the best of some scores are the device's choices, nearly all of them."""
    return bool((scores.argmax(axis=1) == chosen.theirs).mean() >= NEARLY)


def _of_rank(chosen: Chosen) -> Iterator[str]:
    """Choices of one rank that is not the first."""
    wrong = chosen.wrong
    taken = np.take_along_axis(chosen.scores[wrong], chosen.theirs[wrong][:, None], axis=1)
    ranks = (chosen.scores[wrong] > taken).sum(axis=1)
    if len(np.unique(ranks)) == 1 and ranks[0] > 0:
        lowest = ranks[0] == chosen.scores.shape[1] - 1
        yield "the worst, not the best" if lowest else f"the choice of rank {ranks[0] + 1} instead of the first"


def _of_ranks(chosen: Chosen) -> Iterator[str]:
    """Choices of another rank in each row of a pass."""
    taken = np.take_along_axis(chosen.scores, chosen.theirs[:, None], axis=1)
    ranks = (chosen.scores > taken).sum(axis=1)
    by_place = [ranks[chosen.places == place] for place in np.unique(chosen.places)]
    common = [np.bincount(of).argmax() for of in by_place]
    made = sum(int((of == rank).sum()) for of, rank in zip(by_place, common, strict=True))
    if 1 < len(by_place) <= MOST_PLACES and max(common) > 0 and made >= RANKED * len(ranks):
        yield f"by row of the pass the choice of rank {', '.join(str(rank + 1) for rank in common)}"


MOST_PLACES, RANKED = 16, 0.8
"""Rows of a pass that may each have a rank of their own, and the share of the choices that have it: ranks further down
are nearer to each other."""
