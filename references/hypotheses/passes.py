"""What can be wrong with the target's rows, in its verify passes alone or in the prefill alone: each often has kernels
of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from parity.references.hypotheses import experts, heads, masks, norms, projections, residuals, rope, routing, scores
from parity.references.hypotheses.catalogue import Hypothesis, Mutation, Pass, apart
from parity.references.hypotheses.lazily import Loop

OF_ROWS = (
    *(rope.schedules, rope.tables, rope.parts, rope.late, rope.forms, masks.masks, masks.windows, masks.edges),
    *(scores.scores, scores.sinks, scores.softmax, projections.orders, projections.groups, projections.biases),
    *(norms.norms, norms.weights, residuals.residuals, residuals.fed),
    *(routing.routing, routing.limited, routing.router, routing.choices, routing.numbered, routing.routed),
    *(experts.gates, experts.constants, experts.parameters, heads.weights, heads.kept, heads.logits),
)
"""What happens to a row that is in a pass, whichever pass that is."""

WHERE: dict[Pass, tuple[str, str]] = {
    "verify": ("in verify passes alone", "the code of a pass of a few rows, which is right for the prefill"),
    "prefill": ("in the prefill alone", "the code of the prefill, which is right for a pass of a few rows"),
}


def within(loop: Loop, value: Any, apply: Callable[[Loop, Any], Mutation], passes: Pass) -> Mutation:
    """A mutation in force while the target runs such a pass, and only then."""

    def forward(inner: Callable[..., Any], *inputs: Any) -> Any:
        if (loop.state.length > 0) != (passes == "verify"):
            return inner(*inputs)
        with apply(loop, value):
            return inner(*inputs)

    return loop.target.forward.around(forward)


def in_passes(hypotheses: Iterable[Hypothesis], passes: Pass) -> list[Hypothesis]:
    """The target's among these, each in such passes alone, at its discrete values."""
    where, fix = WHERE[passes]
    return [
        apart(
            each,
            f"{each.id}-in-{passes}",
            partial(within, passes=passes),
            where,
            fix,
            seen=(),
            cost=2,
            passes=passes,
        )
        for each in hypotheses
        if each.values and each.stages[0].startswith("target.") and each.cost == 1
    ]


HYPOTHESES = [one for passes in WHERE for family in OF_ROWS for one in in_passes(family.hypotheses, passes)]
