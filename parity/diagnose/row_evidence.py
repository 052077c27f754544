"""Which rows of a stage a hypothesis explains, and which it spoils: what a condition is looked for by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.compare.facts import Facts
from parity.compare.predicate import Predicate
from parity.compare.relations import separating
from parity.compare.rows import StageRows, stage_rows
from parity.diagnose.conditional import RowFacts
from parity.diagnose.hypothesis import Assumption, NotComparable
from parity.diagnose.residuals import ROW, row_noise
from parity.diagnose.trials import PromptTrials
from parity.metrics import measure
from parity.trace import Recorded


@dataclass(frozen=True)
class RowEvidence:
    """Which rows a hypothesis explains and which it spoils, bool [R] each, and the facts of those rows."""

    explained: np.ndarray
    spoilt: np.ndarray
    unexplained: np.ndarray
    facts: Facts

    @property
    def explains(self) -> bool:
        """Whether it leaves no more rows unexplained than chance does."""
        wrong = int(self.explained.sum() + self.unexplained.sum())
        return bool(self.explained.any()) and bool(self.unexplained.sum() <= LEFT * wrong)

    @property
    def whole(self) -> bool:
        """Whether it explains all of that and spoils none: rows of other prompts may tell of a condition."""
        return self.explains and not self.spoilt.any()

    def conditions(self) -> Iterator[tuple[Predicate, bool]]:
        """What tells the explained rows from the spoilt ones, the simplest first; none where it spoils none, explains
        none, or leaves more rows unexplained than chance does."""
        if self.explains and self.spoilt.any():
            yield from separating(self.explained, self.explained | self.spoilt, self.facts)


LEFT = 0.05
"""The share of the wrong rows that may stay wrong under a hypothesis: experts that flip at a router tie do."""

BEYOND, LESS = 2.0, 0.5
"""A row tells something where one of two errors is beyond twice the noise, and the other less than half of it."""


def row_evidence(true: StageRows, other: StageRows, facts: Facts, precision: str = "bfloat16") -> RowEvidence:
    """The rows of one stage of a run in this precision, judged without a hypothesis and with it."""
    if true.floor is None or other.floor is None:
        wrong, spoils = (_differ(side) for side in (true, other))
        return RowEvidence(wrong & ~spoils, ~wrong & spoils, wrong & spoils, facts)
    before, after = (measure(side.golden, side.device, row_axes=1).rows.rel_l2 for side in (true, other))
    floors = [row_noise(side, precision) for side in (true, other)]
    explained = (before > BEYOND * floors[0]) & (after <= LESS * before)
    spoilt = (after > BEYOND * floors[1]) & (before <= LESS * after)
    left = (before > ROW * floors[0]) & (after > ROW * floors[1]) & ~explained & ~spoilt
    return RowEvidence(explained, spoilt, left, facts)


def shape_evidence(explained: bool, spoilt: bool, facts: Facts) -> RowEvidence:
    """One row for a tensor that a hypothesis gives another shape: the device's, the one without it, or neither."""
    one, other, neither = (np.array([each]) for each in (explained, spoilt, not explained and not spoilt))
    return RowEvidence(one, other, neither, facts)


def _differ(rows: StageRows) -> np.ndarray:
    return np.asarray((rows.golden != rows.device).reshape(len(rows.golden), -1).any(axis=1))


def joined_evidence(parts: Sequence[RowEvidence]) -> RowEvidence:
    """That of several stages, or prompts."""
    names = ("explained", "spoilt", "unexplained")
    masks: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return RowEvidence(**masks, facts=Facts.joined([part.facts for part in parts]))


def stage_evidence(trials: PromptTrials, known: Sequence[Assumption], further: Assumption, stage: str) -> RowEvidence:
    """Which rows of a stage, in every layer that shows it, a further assumption explains, and which it spoils, over all
    rounds of the prompt.

    Raises:
        NotComparable: there is no row to judge by.
    """
    golden, run = trials.cut(trials.rounds)
    stages = _siblings(trials, stage)
    true, other = (trials.stages_under(assumed, stages) for assumed in ((*known,), (*known, further)))
    facts, parts = RowFacts(golden), []
    for name in stages:
        one, two = (stage_rows(view, run, golden.declared[name]) for view in (true, other))
        parts += _rows_alike(one, two, facts, run.manifest.case.precision)
        parts += _shapes(trials, name, true.tensors, other.tensors, facts)
    if not parts:
        raise NotComparable
    return joined_evidence(parts)


def _siblings(trials: PromptTrials, stage: str) -> list[str]:
    """The same stage of every layer, as far as the run shows it."""
    names, shown = trials.golden.declared, set(trials.run.manifest.stages)
    template = names[stage].stage.template
    return [name for name, named in names.items() if named.stage.template == template and name in shown]


def _rows_alike(true: StageRows | None, other: StageRows | None, facts: RowFacts, precision: str) -> list[RowEvidence]:
    """The rounds of which both sides have rows."""
    if true is None or other is None:
        return []
    rounds = set(true.round.tolist()) & set(other.round.tolist())
    true, other = (side.take(np.isin(side.round, [*rounds])) for side in (true, other))
    return [row_evidence(true, other, facts.of_rows(true), precision)] if rounds else []


def _shapes(trials: PromptTrials, stage: str, true: Recorded, other: Recorded, facts: RowFacts) -> list[RowEvidence]:
    """The rounds in which an assumption makes another number of rows: one row of evidence stands for each."""
    _, run = trials.cut(trials.rounds)
    parts = []
    for round_ in range(trials.rounds + 1):
        shapes = [side[round_, stage].shape if (round_, stage) in side else None for side in (true, other)]
        if shapes[0] != shapes[1]:
            row = run.rows.get((run.manifest.case.precision, 0, round_, stage))
            seen = None if row is None else tuple(row.full_shape)
            parts.append(shape_evidence(seen == shapes[1], seen == shapes[0], facts.of_place(round_, stage)))
    return parts
