"""Under which condition a part is wrong, over other prompts too: one prompt may have too few wrong rows to tell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import numpy as np

from parity.compare.facts import Facts
from parity.compare.relations import FEW_ROWS, relation
from parity.compare.rows import stage_rows
from parity.diagnose.clock import READING, TimeIsUp
from parity.diagnose.components import Component
from parity.diagnose.components.wrong import WrongRows
from parity.diagnose.trials import PromptTrials

OTHERS = 4
"""Prompts that are looked at beside the one that fails."""

FEW = 8
"""Wrong rows that tell what they have in common, if they have."""

Judged = tuple[np.ndarray, np.ndarray, Facts]
"""Which rows are wrong and which are judged, bool [R] each, and what is known of them."""


class PartConditions:
    """The conditions of several parts, over a prompt and others beside it, each run once."""

    def __init__(self, trials: PromptTrials) -> None:
        self.trials = trials
        self._run: list[PromptTrials] = []
        self._more = islice(trials.other_prompts(), OTHERS)

    def told(self, stage: str, part: Component) -> Component:
        """The same part with what its stage's wrong rows have in common over more prompts, where its own are too
        few."""
        if not part.whole or (part.where and not part.where.startswith(FEW_ROWS)):
            return part
        rows = [*_judged(self.trials, stage)]
        if not rows or rows[0][0].sum() >= FEW or rows[0][0].sum() == rows[0][1].sum():
            return part
        with suppress(TimeIsUp):
            for each in self._others():
                rows += _judged(each, stage)
                if sum(bad.sum() for bad, _, _ in rows) >= FEW:
                    break
        bad, judged, facts = zip(*rows, strict=True)
        said = relation(np.concatenate(bad), np.concatenate(judged), Facts.joined(facts))
        return replace(part, where=said) if said and not said.startswith(FEW_ROWS) else part

    def _others(self) -> Iterator[PromptTrials]:
        """Other prompts, run once they are needed, until the time is up."""
        yield from self._run
        with self.trials.clock.until(READING):
            self.trials.clock.check()
            for each in self._more:
                self._run.append(each)
                yield each
                self.trials.clock.check()


def _judged(trials: PromptTrials, stage: str) -> Iterator[Judged]:
    golden, run = trials.cut(trials.rounds)
    rows = stage_rows(golden, run, golden.declared[stage])
    if rows is None:
        return
    precision = run.manifest.case.precision
    wrong = WrongRows.of(rows, precision)
    bad = np.isin(np.arange(len(rows.golden)), [] if wrong is None else wrong.numbers)
    if rows.floor is None:
        bad = np.asarray((rows.golden != rows.device).any(axis=tuple(range(1, rows.golden.ndim))))
    yield bad, bad | ~WrongRows.unclear(rows, precision), Facts.of(golden, rows)
