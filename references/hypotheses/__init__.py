"""Hypotheses: every way in which a port of speculative decoding is known to be wrong, as a mutation of the references.

Written from the references and from what was met in public, never from a device. Each is declared on the function that
carries it out. Reading them imports no torch.
"""

from __future__ import annotations

from parity.references.hypotheses import (
    accepting,
    caches,
    chain,
    choosing,
    context,
    experts,
    fusing,
    heads,
    inputs,
    loading,
    masks,
    norms,
    projections,
    ranks,
    reductions,
    residuals,
    rope,
    routing,
    scores,
    stale,
    starting,
    steps,
    surplus,
    taps,
)
from parity.references.hypotheses.catalogue import Fit, Hypothesis
from parity.references.hypotheses.mutating import NotApplicable

DECISIONS = (
    *(choosing.vocabulary, choosing.choice, choosing.reading),
    *(accepting.matching, accepting.emitting, accepting.cutting, accepting.showing),
    *(caches.rollback, caches.sided, caches.rings),
    *(stale.stale, surplus.seeds, starting.starts),
    *(context.committed, context.prefilling, context.seeing, context.window),
)
"""Of what is chosen, accepted and kept."""

FAMILIES = (
    *(taps.tap, fusing.fuse, inputs.ids, inputs.positions, inputs.slots, inputs.prompt),
    *(rope.schedules, rope.tables, rope.parts, rope.late, rope.forms),
    *(masks.masks, masks.windows, scores.scores, scores.sinks, scores.moved, scores.softmax),
    *(projections.orders, projections.groups, projections.layouts, projections.biases),
    *(masks.edges, masks.normed_heads, caches.storage),
    *(norms.norms, residuals.residuals, residuals.fusion),
    *(routing.routing, routing.router, routing.choices, routing.numbered, routing.shards),
    *(experts.gates, experts.constants, experts.parameters, experts.drafter, heads.weights),
    *(norms.weights, norms.everywhere, residuals.fed, heads.logits, routing.routed),
    *(loading.mxfp4, loading.exchanged),
    *(chain.chain,),
    *DECISIONS,
    *(reductions.sums, ranks.shards, ranks.gate_up, ranks.choice, ranks.rollback),
)

HYPOTHESES: tuple[Hypothesis, ...] = (
    *(hypothesis for family in FAMILIES for hypothesis in family.hypotheses),
    *steps.HYPOTHESES,
)


def offered(drafters: str) -> tuple[Hypothesis, ...]:
    """The hypotheses about one family of drafters, `p-eagle` or `eagle-3`."""
    return tuple(hypothesis for hypothesis in HYPOTHESES if drafters in hypothesis.drafters)


__all__ = ["DECISIONS", "FAMILIES", "HYPOTHESES", "Fit", "Hypothesis", "NotApplicable", "offered"]
