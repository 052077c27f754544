"""Faults of the drafter's final norm and of its map to target ids."""

from __future__ import annotations

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft heads", 15)


@fault(
    "draft-shares-the-targets-final-norm",
    "the drafter's final norm has the weight of the target's",
    "drafter.pre_head_hidden",
    "draft",
    "final norm weight of the drafter",
)
def _(pipeline: Pipeline) -> None:
    pipeline.drafter.outer["norm"] = pipeline.target.outer["norm"]


@fault(
    "d2t-read-as-ids",
    "d2t is taken for target ids, its entries are offsets",
    "drafter.draft_tokens",
    "draft",
    "d2t: not added to the draft id",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, d2t):
        return at.array(at.host(d2t)[at.host(ids)], ids)

    alter(pipeline, "drafter:to_target_ids", change)
