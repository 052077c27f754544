"""Faults of the drafter's ids, positions and embeddings."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("taps and fuse", 17)


@fault(
    "drafter-positions-of-the-token",
    "the drafter's rows sit at the position of their token, which is one behind that of their taps",
    "drafter.positions",
    "prefill",
    "positions of the drafter's rows, one too large",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        ids, positions, slots = clean(*given)
        return ids, positions + 1, slots

    replaced(pipeline, pipeline.drafter, "layout", change)


@fault(
    "embeddings-of-the-target",
    "the drafter embeds by the target's table, its own is not loaded",
    "drafter.layers.0.attn_out",
    "prefill",
    "embedding table of the drafter",
)
def _(pipeline: Pipeline) -> None:
    pipeline.drafter.outer["embed"] = pipeline.target.outer["embed"]


@fault(
    "placeholders-written-once",
    "the buffer of a draft pass' ids is filled with placeholders once a prompt, later committed ids stay in it",
    "drafter.input_ids",
    "draft",
    "ids of masked rows, committed ids of earlier rounds",
    "masked rows at a place where an earlier round of the prompt had a committed row",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, ids, others):
        ids, *rest = clean(ids, others)
        if at.kind == "prefill":
            held.clear()
        if at.kind == "draft":
            count = len(ids) - others
            for row in range(count, len(ids)):
                ids[row] = held.get(row, ids[row])
            held.update(enumerate(ids[:count].tolist()))
        return ids, *rest

    replaced(pipeline, pipeline.drafter, "layout", change)
