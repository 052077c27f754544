"""What can be wrong with a drafter's rows, on chain rows alone: a single row often has code of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from parity.references.hypotheses import (
    choosing,
    context,
    experts,
    heads,
    masks,
    norms,
    projections,
    residuals,
    rope,
    scores,
)
from parity.references.hypotheses.catalogue import STEPS, Hypothesis, Mutation, apart
from parity.references.hypotheses.lazily import Loop

OF_ROWS = (
    *(rope.schedules, rope.tables, rope.late, rope.forms, masks.masks, masks.edges, masks.normed_heads),
    *(scores.scores, scores.softmax, projections.orders, projections.groups, projections.layouts),
    *(norms.norms, norms.weights, residuals.residuals, residuals.fusion, residuals.fed, experts.drafter),
    *(heads.weights, heads.logits, choosing.vocabulary, context.seeing, context.window),
)
"""What happens to a row that is in a pass, whichever pass that is."""

AMONG_ROWS = ("attn-causal-next-row", "attn-causal-missing", "drafter-window-all")
"""What only a pass of several rows can have."""


def step_alone(loop: Loop, value: Any, apply: Callable[[Loop, Any], Mutation]) -> Mutation:
    """A mutation in force while a chain row runs and drafts, and only then."""

    def step(inner: Callable[..., Any], *inputs: Any) -> Any:
        with apply(loop, value):
            return inner(*inputs)

    return loop.chain_step.around(step)


def of_drafter_rows(
    hypothesis: Hypothesis, end: str, within: Callable[..., Mutation], where: str, fix: str, drafters: Iterable[str]
) -> Hypothesis:
    """A drafter's hypothesis for some of its rows alone: those for which `within(loop, value, apply)` applies it."""
    name = f"{hypothesis.defect}-{end}-rows"
    return apart(hypothesis, name, within, where, fix, layered=False, cost=3, drafters=tuple(drafters))


def in_steps(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """The drafter's among these, each on chain rows alone, at its discrete values."""
    place = "chain", step_alone, "on chain rows alone", "the code of a single step, which is right for committed rows"
    return [
        of_drafter_rows(each, *place, [one for one in STEPS if one in each.drafters])
        for each in hypotheses
        if each.values and _fits(each)
    ]


def _fits(hypothesis: Hypothesis) -> bool:
    """Whether a hypothesis is the drafter's, not of a chain alone, and about single rows."""
    of_any = set(hypothesis.drafters) & set(STEPS) and not set(hypothesis.drafters) <= set(STEPS)
    return bool(of_any) and hypothesis.stages[0].startswith("drafter.") and hypothesis.defect not in AMONG_ROWS


HYPOTHESES = in_steps(hypothesis for family in OF_ROWS for hypothesis in family.hypotheses)
