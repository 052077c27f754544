"""Hypotheses of some rows: the condition that tells the rows that each explains from those that it spoils."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from math import inf
from typing import Any

import numpy as np

from parity.diagnose.attempts import attempt
from parity.diagnose.conditional import only
from parity.diagnose.hypothesis import Assumption, CheckableHypothesis
from parity.diagnose.ranking import Trial, ranked_trials, trial_order
from parity.diagnose.residuals import red_rows
from parity.diagnose.row_evidence import RowEvidence, joined_evidence, stage_evidence
from parity.diagnose.search.parameters import best_value, near_clean
from parity.diagnose.search.stage_trials import StageTrials
from parity.diagnose.trials import PromptTrials

PART = 0.5
"""What explains some rows leaves less than this of the error in these, and does not move others' that much."""

SOME = 0.8
"""A parameter that is fitted to some rows leaves less than this of the error at a point of its scan: where each element
is taken with a value or without it, something less is left whatever the value."""

CANDIDATES, OTHERS, WORDINGS = 12, 2, 2
"""The assumptions for which a condition is looked for, the other prompts that narrow it down, and the conditions of
each that are tried."""

OF_CHOICES = 60
"""As many where a stage holds choices: they have no size, so that what explains some rows is not told before."""


class ConditionSearch:
    """Conditions under which hypotheses explain one failing stage.

    Where errors stay in their rows alone: in a chained comparison they travel.
    """

    def __init__(self, stage: StageTrials) -> None:
        self.stage = stage
        self.trials, self.first = stage.trials, stage.first
        self._asked: set[tuple[str, Any]] = set()

    def tried_already(self, made: Sequence[Trial]) -> Iterator[Iterator[Trial]]:
        """What explains the wrong rows and spoils others, for the rows of the condition that tells the two apart.

        Of each assumption once, however often this is called.
        """
        if not self.trials.contained:
            return
        if self._any_row_clean():
            yield self._where_told(self._spoiling(made))
        else:
            whole = [trial for trial in made if trial.settles and len(trial.assumed) == 1]
            yield self._where_told([trial.assumed[0] for trial in ranked_trials(whole)][:CANDIDATES])

    def near_clean(self) -> Iterator[Iterator[Trial]]:
        """The same with parameters that are a little off in some of the rows."""
        yield from self._of_some_rows(lambda one: near_clean(self.stage, one, self.stage.unchecked))

    def fitted(self) -> Iterator[Iterator[Trial]]:
        """The same with parameters that are fitted to some of the rows."""
        weigh = self.stage.unchecked
        yield from self._of_some_rows(lambda one: best_value(self.stage, one, (), weigh, self._left, SOME))

    def _of_some_rows(self, found: Callable[[CheckableHypothesis], list[Trial]]) -> Iterator[Iterator[Trial]]:
        if self.trials.contained and self.stage.gap is not None and self._any_row_clean():
            trials = (trial for hypothesis in self.stage.hypotheses for trial in found(hypothesis))
            yield self._where_told(each for trial in trials for each in self._in_part([trial]))

    @cached_property
    def _others(self) -> list[PromptTrials]:
        """Other prompts, run once they are needed."""
        return [*islice(self.trials.other_prompts(), OTHERS)]

    def _left(self, trial: Trial) -> float:
        """The share of the error that is left where each element is taken with a trial's assumptions or without them.

        What has no numbers of the same shapes is not told from what leaves nothing.
        """
        moved = trial.sample
        gap = self.stage.gap if moved is None else self.stage.gap_beside(moved)
        if gap is None or moved is None:
            return 0.0 if self.stage.gap is None and trial.after.error < inf else inf
        gap, moved = gap[determined := ~np.isnan(moved)], moved[determined]
        size = float(np.linalg.norm(gap))
        return float(np.linalg.norm(np.minimum(abs(gap), abs(gap - moved)))) / size if size else inf

    def _any_row_clean(self) -> bool:
        """Whether the failing stage has rows that are right; where it has none, only a layer can be the condition.

        Where no single row is beyond its bound, all of them are off a little.
        """
        wrong = red_rows(*self.trials.cut(self.trials.rounds), self.first.stage)
        return not wrong or (any(wrong.values()) and not all(wrong.values()))

    def _spoiling(self, made: Sequence[Trial]) -> Iterator[Assumption]:
        """The assumptions made, and those that broke the prefill, under which some rows are explained.

        What was tried for such passes alone is not tried for all of them as well.
        """
        apart = [hypothesis.id for hypothesis in self.stage.hypotheses if hypothesis.passes]
        again = [one for one in self.stage.spoilt if not any(id.startswith(f"{one[0][0].id}-in-") for id in apart)]
        spoilt = [trial for assumed in again if (trial := self.stage.unchecked(assumed))]
        yield from self._in_part([*(trial for trial in made if len(trial.assumed) == 1), *spoilt])

    def _in_part(self, alone: Sequence[Trial]) -> list[Assumption]:
        """The assumptions that leave least where each row is taken with or without them, the best first."""
        ranked = sorted(alone, key=lambda trial: (self._left(trial), trial_order(trial)))
        most = OF_CHOICES if self.stage.gap is None else CANDIDATES
        return [trial.assumed[0] for trial in ranked if self._left(trial) <= PART][:most]

    def _where_told(self, assumptions: Iterable[Assumption]) -> Iterator[Trial]:
        """Each for the rows of the simplest conditions that tell what it explains from what it spoils."""
        for hypothesis, value in assumptions:
            if (hypothesis.id, value) in self._asked:
                continue
            self._asked.add((hypothesis.id, value))
            told = self._evidence(self.trials, (hypothesis, value))
            if told is None or not (told.whole or next(told.conditions(), None)):
                continue
            parts = [part for other in self._others if (part := self._evidence(other, (hypothesis, value)))]
            conditions = [*islice(joined_evidence([told, *parts]).conditions(), WORDINGS)]
            for where, believed in conditions or islice(told.conditions(), WORDINGS):
                yield from self.stage.each([((only(hypothesis, where, believed), value),)])

    def _evidence(self, trials: PromptTrials, assumption: Assumption) -> RowEvidence | None:
        """Which rows of the failing stage, in every layer of a prompt, a further assumption explains and spoils."""
        return attempt(partial(stage_evidence, trials, self.stage.known, assumption, self.first.stage))
