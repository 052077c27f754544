"""Eleventh set: faults of acceptance and of the rounds."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import moment, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("the loop", 11)


def draft_ids(pipeline: Pipeline) -> np.ndarray:
    """Draft id of each of the target's ids: int64 [V], -1 where there is none."""
    offsets = moment(pipeline).host(pipeline.drafter.outer["d2t"]).astype(np.int64)
    made = np.full(pipeline.target.config.vocab, -1)
    made[np.arange(len(offsets)) + offsets] = np.arange(len(offsets))
    return made


# Of the class of https://github.com/NVIDIA-NeMo/Automodel/pull/2447: what the drafter made, in its own vocabulary.
@fault(
    "accepted-drafts-fed-by-their-draft-ids",
    "accepted drafts go into the next draft pass as the drafter made them, by draft ids; the target's token does not",
    "drafter.input_ids",
    "draft",
    "ids of committed rows that were drafts: draft ids, where the target's are meant",
    "committed rows but the last of draft passes behind a round that accepted a draft",
)
def _(pipeline: Pipeline) -> None:
    own = draft_ids(pipeline)

    def change(at, clean, text, emitted):
        made = clean(text, emitted).copy()
        made[:-1] = own[made[:-1]]
        return made

    replaced(pipeline, pipeline.drafter, "due", change)


# From the equations: a comparison in front of the map that makes both sides comparable.
@fault(
    "agreement-of-draft-ids",
    "acceptance compares draft ids with the target's tokens",
    "accept.length",
    "commit",
    "acceptance: a draft counts where its draft id is the target's token",
)
def _(pipeline: Pipeline) -> None:
    own = draft_ids(pipeline)

    def change(at, clean, drafts, verified):
        return clean(own[drafts], verified)

    replaced(pipeline, pipeline, "accepted", change)


# Of the class of https://github.com/kekzl/imp/issues/667: a token that comes twice where a round was accepted.
@fault(
    "bonus-comes-out-again",
    "behind a round that accepted every draft its last token comes out again, in the place of this round's last one",
    "accept.emitted",
    "commit",
    "emitted tokens: each a place late, behind the last token of the round before; their number is right",
    "rounds behind one that accepted all 4 drafts",
    "accepted = 4",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def count(at, clean, drafts, verified):
        return held.pop("length") if "length" in held else clean(drafts, verified)

    def change(at, clean, drafts, verified, record):
        if at.accepted != pipeline.k:
            return clean(drafts, verified, record)
        length, last = pipeline.accepted(drafts, verified), pipeline._emitted[-1:]
        held["length"] = length
        return clean(drafts, np.concatenate([last, verified[:-1]]), record)

    replaced(pipeline, pipeline, "accepted", count)
    replaced(pipeline, pipeline, "_accept", change)


# Of vLLM's drafters, whose positions behind their own limit become 0.
@fault(
    "positions-behind-the-limit-become-zero",
    "the drafter's limit is read as 128 rows, and rows of a draft pass that lie behind it are given position 0",
    "drafter.positions",
    "draft",
    "positions from 128 on in draft passes: 0; slots are right",
    "rows of draft passes at positions from 128 on: the first prompt's",
    "pass = draft and position >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        ids, positions, slots = clean(ids, others)
        if at.kind == "draft":
            positions = np.where(positions < 128, positions, 0)
        return ids, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)
