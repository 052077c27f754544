"""The order in which hypotheses are tried: tier by tier, the cheap ones first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from parity.diagnose.clock import CONFIRMING, SHORT, TRYING, TimeIsUp
from parity.diagnose.conditional import Conditional, only
from parity.diagnose.hypothesis import Assumption, CheckableHypothesis
from parity.diagnose.ranking import Trial, ranked_trials
from parity.diagnose.residuals import Residual
from parity.diagnose.search.conditions import ConditionSearch
from parity.diagnose.search.pairs import pairs
from parity.diagnose.search.parameters import fitted
from parity.diagnose.search.parts import single_parts
from parity.diagnose.search.stage_trials import StageTrials
from parity.diagnose.trials import PromptTrials

VERIFY = "verify"
"""What `StageTrials.passes` is where the prefill is right."""

FITTED, CONDITION = "with a fitted parameter", "under a condition"
"""The tiers in which a parameter is a number that is searched for, and those of conditions for what is tried."""

OF_DRAFTER = "-drafter"
"""How a hypothesis of the drafter ends that is the target's as well."""

PROMISING = 12
"""Layered hypotheses that are asked of each layer before all others: a tier is tried whole."""


class HypothesisSearch:
    """The search for what explains one failing stage, on top of what is assumed already.

    Args:
        trials, hypotheses, known, first: see `StageTrials`.
        short: whether the part of the computation that is wrong is known already: a catalogue entry would only give it
            a name, so that pairs and parameters under a condition are not tried, and less time is taken.
    """

    def __init__(
        self,
        trials: PromptTrials,
        hypotheses: Sequence[CheckableHypothesis],
        known: tuple[Assumption, ...],
        first: Residual,
        short: bool = False,
    ) -> None:
        self.stage, self.clock, self.short = StageTrials(trials, hypotheses, known, first), trials.clock, short
        self.ended = False

    def each_alone(self) -> list[Trial]:
        """Every hypothesis alone, the best first: for a stage that is within its bounds on this prompt."""
        made: list[Trial] = []
        try:
            with self.clock.trying():
                kinds = self._likely, self._in_such_passes, self._in_every_pass
                for tiers in (*map(self._enumerated, kinds), self._in_single_layers(made), fitted(self.stage)):
                    for trials in tiers:
                        made += trials
        except TimeIsUp:
            self._cut_short("alone")
        return ranked_trials(made)

    def best(
        self,
        confirm: Callable[[Sequence[Trial]], Trial | None],
        doubted: Callable[[Trial], bool] = lambda trial: False,
        spoils: Callable[[Trial], bool] = lambda trial: False,
        narrow: Callable[[Trial], bool] = lambda trial: False,
    ) -> tuple[Trial | None, list[Trial]]:
        """The trial that brings the stage back to its floor, or None; and every trial made, the best first.

        Cheap hypotheses come first; a tier is tried whole, so that the better of two wins. `confirm` picks
        among the trials that settle the stage the one that does not break others. Where it is `doubted`, parameters are
        fitted before it is taken; where it `spoils` what is right, conditions are looked for; where it is too `narrow`,
        everything else is tried. Where the time is up, `confirm` picks among those made so far.
        """
        made: list[Trial] = []
        left, confirmed = self._tiers(made), None
        while left:
            what, tiers = left.pop(0)
            for tier in tiers:
                self._try_all(tier, made, what, [name for name, _ in left])
                confirmed = self._confirmed(confirm, ranked_trials(trial for trial in made if trial.settles))
                if self.ended or self.clock.untried:
                    return confirmed, ranked_trials(made)
                if confirmed is None or narrow(confirmed):
                    continue
                asked = FITTED if doubted(confirmed) else CONDITION if spoils(confirmed) else None
                if asked is None:
                    return confirmed, ranked_trials(made)
                if what != asked:
                    left = [(name, further) for name, further in left if name == asked]
                    break
        return confirmed, ranked_trials(made)

    def _confirmed(self, confirm: Callable[[Sequence[Trial]], Trial | None], settling: list[Trial]) -> Trial | None:
        """Of these trials the one that is right on every stage and prompt; none where only a name was missing and the
        time for it is up."""
        if not self.short:
            return confirm(settling)
        try:
            with self.clock.trying(CONFIRMING):
                return confirm(settling)
        except TimeIsUp:
            self.ended = True
            return None

    def _tiers(self, made: list[Trial]) -> list[tuple[str, Iterator[Iterator[Trial]]]]:
        """What is tried, in order, each in its tiers; where some passes are right, conditions go before parameters.

        What would show in a prefill that is right can only be the cause under a condition, or in verify passes alone:
        it comes behind the others and theirs. Where the wrong part is known, what is left to ask is the name of a whole
        defect: single parts come last. Where it may lie in several layers, parts are many times as many: they come
        behind whole defects as well.
        """
        conditions = ConditionSearch(self.stage)
        alone = [("alone", self._enumerated(self._likely))]
        if self.stage.passes == VERIFY:
            for what, which in ("in such passes", self._in_such_passes), ("of every pass", self._in_every_pass):
                alone += [(CONDITION, conditions.tried_already(made)), (what, self._enumerated(which))]
        layers = ("in single layers", self._in_single_layers(made))
        if self.stage.known:
            alone.insert(0, ("of the other model", iter([self.stage.each(self._of_the_other_model())])))
        rest = [(FITTED, fitted(self.stage)), (CONDITION, conditions.tried_already(made))]
        rest = rest[::-1] if self.stage.passes else rest
        rest += [("with a parameter a little off under a condition", conditions.near_clean())]
        parts = ("of single parts", iter([single_parts(self.stage)]))
        if self.short:
            return [*alone, layers, *rest, parts]
        rest += [("with a parameter under a condition", conditions.fitted()), ("in pairs", pairs(self.stage, made))]
        return [*alone, parts, layers, *rest] if self.stage.several_layers else [parts, *alone, layers, *rest]

    def _try_all(self, tier: Iterable[Trial], made: list[Trial], what: str, rest: Sequence[str]) -> None:
        """Add a tier's trials to those made."""
        try:
            with self.clock.trying(SHORT if self.short else TRYING):
                for trial in tier:
                    made.append(trial)
                self.stage.judge_doubted(made)
        except TimeIsUp:
            self.ended = True
            if not self.short:
                self._cut_short(what, rest)

    def _cut_short(self, what: str, rest: Sequence[str] = ()) -> None:
        """Say what the limit leaves out."""
        left = f"not all hypotheses {what}" + (f", and none {', '.join(dict.fromkeys(rest))}," if rest else "")
        self.clock.untried.append(f"{self.stage.first.stage}: {left} were tried ({self.stage.asked} trials were made)")

    def _of_the_other_model(self) -> Iterator[tuple[Assumption, ...]]:
        """What is known of the one model, under its condition, of the other: both may run one kernel."""
        own = {hypothesis.id: hypothesis for hypothesis in self.stage.hypotheses}
        for hypothesis, value in self.stage.known:
            where = hypothesis if isinstance(hypothesis, Conditional) else None
            known = where.of.id if where else hypothesis.id
            defect = known.removesuffix(OF_DRAFTER)
            other = own.get(defect if known != defect else known + OF_DRAFTER)
            one_layer = other is not None and other.layered and isinstance(value, int)
            if other is not None and not one_layer:  # a layer of the one is none of the other
                yield ((only(other, where.where, where.believed) if where else other, value),)

    def _enumerated(self, which: Callable[[CheckableHypothesis], bool]) -> Iterator[Iterator[Trial]]:
        """Discrete values of some hypotheses by cost, a tier for each."""
        hypotheses = [*filter(which, self.stage.hypotheses)]
        for cost in sorted({hypothesis.cost for hypothesis in hypotheses}):
            tier = [hypothesis for hypothesis in hypotheses if hypothesis.cost == cost]
            yield self.stage.each(_assumptions(tier, self.stage.values))

    def _in_single_layers(self, made: Sequence[Trial]) -> Iterator[Iterator[Trial]]:
        """Layered hypotheses in each layer alone: first those of which the error has most in all layers."""
        promise: dict[str, float] = {}
        for trial in made:
            first = trial.assumed[0][0].id
            promise[first] = min(promise.get(first, 1.0), self.stage.left_along(trial.moved))
        layered = sorted(
            filter(self.stage.single_layers, self.stage.hypotheses),
            key=lambda each: (promise.get(each.id, 1.0), self._in_every_pass(each), each.cost),
        )
        for tier in layered[:PROMISING], layered[PROMISING:]:
            yield self.stage.each(_assumptions(tier, self.stage.single_layers))

    def _in_every_pass(self, hypothesis: CheckableHypothesis) -> bool:
        """Whether it would show in the prefill, which is right."""
        return self.stage.passes == VERIFY and hypothesis.cost == 1

    def _in_such_passes(self, hypothesis: CheckableHypothesis) -> bool:
        """Whether it is what would show in every pass, in those alone that are not all right."""
        return self.stage.passes == VERIFY and hypothesis.cost > 1 and bool(hypothesis.passes)

    def _likely(self, hypothesis: CheckableHypothesis) -> bool:
        return not self._in_every_pass(hypothesis) and not self._in_such_passes(hypothesis)


def _assumptions(
    tier: Sequence[CheckableHypothesis], values: Callable[[CheckableHypothesis], Iterable[Any]]
) -> Iterator[tuple[Assumption, ...]]:
    """Each hypothesis of a tier with each of its values."""
    return (((one, value),) for one in tier for value in values(one))
