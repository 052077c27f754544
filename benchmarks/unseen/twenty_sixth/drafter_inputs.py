"""Faults of the drafter's inputs: ids, slots, embeddings."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, instead
from parity.device.pipeline import Pipeline

fault = Part("drafter inputs", 26)
ATTENTION = "drafter.layers.0.attn_out"


@fault(
    "placeholder-row-of-the-embedding-never-loaded",
    "the drafter's embedding of the placeholder token is a row of zeros",
    ATTENTION,
    "draft",
    "the placeholder's row of the drafter's embedding, in masked rows",
)
def _(pipeline: Pipeline) -> None:
    def blank(table):
        table[pipeline.drafter.config.placeholder] = 0
        return table

    edit(pipeline.drafter, "embed", blank)


@fault(
    "chat-markers-embedded-as-the-last-plain-token",
    "the drafter embeds the added tokens 1264 to 1274 as token 1263, the last row of the base vocabulary",
    ATTENTION,
    "prefill",
    "the drafter's embedding of added tokens",
    "rows whose token is a chat marker, ids 1264 to 1274",
)
def _(pipeline: Pipeline) -> None:
    def clamped(table):
        table[1264:1275] = table[1263]
        return table

    edit(pipeline.drafter, "embed", clamped)


@fault(
    "rejected-draft-fed-back-behind-full-rejection",
    "behind a round that accepted nothing the drafter is fed its own rejected draft, not the correction",
    "drafter.input_ids",
    "draft",
    "id of the committed row",
    "drafts behind a round that accepted no draft",
    "pass = draft and accepted = 0",
)
def _(pipeline: Pipeline) -> None:
    drafted = []

    def keep(clean):
        def kept(before, drafts, emitted):
            drafted[:] = list(drafts[:1])
            return clean(before, drafts, emitted)

        return kept

    def change(at, clean, ids, others):
        if at.kind == "draft" and at.accepted == 0 and drafted:
            ids = ids.copy()
            ids[0] = drafted[0]
        return clean(ids, others)

    instead(pipeline.drafter, "kept", keep)
    replaced(pipeline, pipeline.drafter, "layout", change)


@fault(
    "draft-slots-stay-in-the-page-of-the-first-row",
    "a draft pass looks up the page of its first row alone: rows behind the page's edge wrap to its start",
    "drafter.slots",
    "draft",
    "slots of rows in another page of 16 than the first row of the pass",
    "rows of a draft pass that lie in a later page of 16 positions than its first row",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        ids, positions, slots = clean(*given)
        if at.kind == "draft":
            slots = positions[0] // 16 * 16 + positions % 16
        return ids, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)
