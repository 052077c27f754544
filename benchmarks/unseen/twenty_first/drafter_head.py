"""Faults of the drafter's last norm, its head and the way to target ids."""

from __future__ import annotations

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft head", 21)


@fault(
    "final-norm-weight-of-target",
    "the drafter's final norm has the weight of the target's",
    "drafter.pre_head_hidden",
    "draft",
    "weight of the drafter's final norm",
)
def _(pipeline: Pipeline) -> None:
    pipeline.drafter.outer["norm"] = pipeline.target.outer["norm"]


@fault(
    "last-head-tile-stale",
    "the last, partial tile of the draft head's columns repeats the tile before it",
    "drafter.logits",
    "draft",
    "draft logits of columns 896 to 991",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        def stale(value):
            value[..., 896:992] = value[..., 768:864]
            return value

        return at.changed(clean(x, weight), stale)

    alter(pipeline, "drafter:linear", change)


@fault(
    "d2t-of-first-draft",
    "all drafts of a round are moved to target ids by the offset of the first one",
    "drafter.draft_tokens",
    "draft",
    "d2t's offset of every draft but the first",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, d2t):
        drafts, right = at.host(ids), at.host(clean(ids, d2t))
        return at.array(drafts + (right - drafts)[:, :1], ids)

    alter(pipeline, "drafter:to_target_ids", change)
