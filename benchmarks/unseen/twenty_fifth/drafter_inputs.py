"""Faults of the rows of a draft pass: ids, positions, slots, embeddings."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("rows of the drafter", 25)


@fault(
    "placeholder-row-of-embedding-left-empty",
    "the placeholder's row of the drafter's embedding is not in the loaded shard and stays zero",
    "drafter.layers.0.attn_out",
    "draft",
    "the drafter's embedding, row of the placeholder",
)
def _(pipeline: Pipeline) -> None:
    def empty(value):
        value[pipeline.drafter.config.placeholder] = 0
        return value

    rewritten(pipeline, pipeline.drafter.outer, "embed", empty)


@fault(
    "masked-slots-start-on-last-committed",
    "slots of masked rows begin with that of the last committed row, which the first of them overwrites",
    "drafter.slots",
    "draft",
    "slots of masked rows, one too small",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        made, positions, slots = clean(ids, others)
        slots[len(ids) :] -= 1
        return made, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)


@fault(
    "masked-positions-skip-one-after-rejection",
    "behind a round that accepted nothing masked rows stand one position too far",
    "drafter.positions",
    "draft",
    "positions of masked rows, one too large",
    "masked rows of drafts behind a round that accepted no draft",
    "pass = draft and accepted = 0 and row > 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        made, positions, slots = clean(ids, others)
        if at.kind == "draft" and at.accepted == 0:
            positions[len(ids) :] += 1
        return made, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)


@fault(
    "even-rounds-read-other-token-buffer",
    "of two buffers of committed ids the wrong one gives an even round's first id",
    "drafter.input_ids",
    "draft",
    "the first committed id: that of the round before",
    "the first row of drafts of even rounds",
    "pass = draft and round % 2 = 0 and row = 0",
)
def _(pipeline: Pipeline) -> None:
    held = [0]

    def change(at, clean, ids, others):
        made, positions, slots = clean(ids, others)
        if at.kind == "draft":
            first, made = int(ids[0]), made.copy()
            if at.round % 2 == 0:
                made[0] = held[0]
            held[0] = first
        return made, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)
