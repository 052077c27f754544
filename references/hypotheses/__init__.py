"""Hypotheses: every way in which a port of speculative decoding is known to be wrong, as a mutation of the references.

Written from the references and from what was met in public, never from a device. Each is declared on the function that
carries it out. Reading them imports no torch.
"""

from __future__ import annotations

from dataclasses import replace

from parity.references.hypotheses import (
    accepting,
    ahead,
    block,
    block_context,
    caches,
    chain,
    choosing,
    context,
    experts,
    fusing,
    heads,
    inputs,
    likely_drafts,
    loading,
    lookup,
    masks,
    norms,
    page_scores,
    pages,
    parts,
    passes,
    projections,
    quantised,
    ramps,
    ranks,
    reductions,
    residuals,
    rolled_back,
    rope,
    routing,
    scores,
    stale,
    starting,
    steps,
    surplus,
    taps,
    unfed,
)
from parity.references.hypotheses.catalogue import DENOISING, Fit, Hypothesis
from parity.references.hypotheses.mutating import NotApplicable

KV = "kv.drafter.*"

PAGES = (pages.paged, pages.layered, page_scores.scored, page_scores.summarised)
"""Of partial KV, tried first where there is some."""

QUANTISED = (quantised.formats, quantised.scales)
"""Of quantised caches, tried first where there are some."""

DECISIONS = (
    *(choosing.vocabulary, choosing.choice, choosing.reading, choosing.handed),
    *(accepting.matching, accepting.comparing, accepting.emitting, accepting.limited),
    *(accepting.cutting, accepting.showing),
    likely_drafts.likely,
    *(rolled_back.rollback, caches.sided, caches.rings),
    *(stale.stale, surplus.seeds, starting.starts),
    *(ahead.early, ahead.starting, ahead.telling),
    *(context.committed, context.prefilling, context.seeing, context.window),
)
"""Of what is chosen, accepted and kept."""

FAMILIES = (
    *PAGES,
    *QUANTISED,
    *(taps.tap, fusing.fuse, inputs.ids, inputs.positions, inputs.slots, inputs.prompt),
    *(rope.schedules, ramps.ramps, rope.tables, rope.parts, rope.late, rope.forms),
    *(masks.masks, masks.windows, scores.scores, scores.sinks, scores.moved, scores.softmax),
    *(projections.orders, projections.groups, projections.layouts, projections.biases),
    *(masks.edges, masks.normed_heads, caches.storage),
    *(norms.norms, residuals.residuals, residuals.fusion),
    *(
        routing.routing,
        routing.limited,
        routing.crowded,
        routing.router,
        routing.choices,
        routing.numbered,
        routing.shards,
    ),
    *(experts.gates, experts.constants, experts.parameters, experts.drafter, heads.weights),
    *(norms.weights, norms.everywhere, residuals.fed, heads.logits, heads.kept, routing.routed),
    *(loading.mxfp4, loading.exchanged),
    *(chain.chain, unfed.unfed),
    *(block.block, block.sight, block_context.context, block_context.heads),
    *DECISIONS,
    *(parts.parts,),
    *(reductions.sums, ranks.shards, ranks.gate_up, ranks.choice, ranks.rollback),
)

HYPOTHESES: tuple[Hypothesis, ...] = (
    *(hypothesis for family in FAMILIES for hypothesis in family.hypotheses),
    *lookup.HYPOTHESES,
    *steps.HYPOTHESES,
    *passes.HYPOTHESES,
    *block_context.HYPOTHESES,
)


def offered(family: str, partial_kv: bool = False, kv_cache: bool = False) -> tuple[Hypothesis, ...]:
    """The hypotheses about one family of drafters, with where they show first in it; of pages with partial KV alone, of
    scales and formats with quantised caches alone."""
    lacking = (*(() if partial_kv else PAGES), *(() if kv_cache else QUANTISED))
    left_out = {hypothesis.id for each in lacking for hypothesis in each.hypotheses}
    known = (each for each in HYPOTHESES if each.id not in left_out)
    return tuple(_in(hypothesis, family) for hypothesis in known if hypothesis.about(family))


def _in(hypothesis: Hypothesis, family: str) -> Hypothesis:
    """Where rows of known tokens are context, and nothing but keys and values, these show what an attention does."""
    attends = any(stage.startswith("drafter.") and stage.endswith(".attn_out") for stage in hypothesis.stages)
    return replace(hypothesis, stages=(*hypothesis.stages, KV)) if family in DENOISING and attends else hypothesis


__all__ = ["DECISIONS", "FAMILIES", "HYPOTHESES", "PAGES", "QUANTISED", "Fit", "Hypothesis", "NotApplicable", "offered"]
