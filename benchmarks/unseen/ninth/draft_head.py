"""Ninth set: faults of the draft head and of draft ids."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment, replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("draft head", 9)


# Of the class of https://github.com/NVIDIA-NeMo/Automodel/pull/2447: a map that one of two places should apply.
@fault(
    "offset-added-by-both",
    "head and loop both take draft ids to the target's vocabulary",
    "drafter.draft_tokens",
    "draft",
    "draft ids: the offset of d2t is added twice",
)
def _(pipeline: Pipeline) -> None:
    last = pipeline.target.config.vocab - 1

    def change(at, clean, draft_ids, d2t):
        twice = 2 * at.host(clean(draft_ids, d2t)) - at.host(draft_ids)
        return at.array(np.minimum(twice, last), draft_ids)

    alter(pipeline, "drafter:to_target_ids", change)


# From the equations: a count of committed rows that two is the least of.
@fault(
    "two-committed-rows-at-least",
    "the head's first row is counted from two committed rows, where a draft pass has one",
    "drafter.pre_head_hidden",
    "draft",
    "rows that the draft head takes: one too late, the last one twice",
    "draft passes of one committed row: of round 1, and behind a round that accepted nothing",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, committed, k, record):
        return clean(x, max(committed, 2), k, record)

    replaced(pipeline, pipeline.drafter, "choose", change)


# From the equations: a head that a config says is tied.
@fault(
    "draft-head-tied",
    "the drafter's head is tied to its embedding, at the ids that d2t names",
    "drafter.logits",
    "draft",
    "the draft head: rows of the drafter's embedding table",
)
def _(pipeline: Pipeline) -> None:
    outer, at = pipeline.drafter.outer, moment(pipeline)
    offsets = at.host(outer["d2t"])
    rows = at.host(outer["embed"])[np.arange(len(offsets)) + offsets]
    rewritten(pipeline, outer, "head", lambda _: rows.T)
