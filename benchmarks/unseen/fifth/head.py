"""Fifth set: faults of the heads of target and draft."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("embedding and head", 5)
TRASH, MOST = 512, 127
"""The slot of padding; the largest integer of eight bits."""


@fault(
    "head-in-eight-bits-of-one-scale",
    "the target's head is kept in integers of eight bits with one scale for all of it",
    "target.logits",
    "prefill",
    "target head weight",
)
def _(pipeline: Pipeline) -> None:
    def short(value):
        scale = np.abs(value).max() / MOST
        return np.round(value / scale) * scale

    edit(pipeline.target, "head", short)


@fault(
    "offset-of-the-draft-before",
    "a draft takes the d2t offset that the draft before it looked up, the first one its own",
    "drafter.draft_tokens",
    "draft",
    "d2t offset of a draft",
    "all drafts of a round but the first",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, d2t):
        def late(value):
            offsets = value - at.host(ids)
            offsets[:, 1:] = offsets[:, :-1].copy()
            return at.host(ids) + offsets

        return at.changed(clean(ids, d2t), late)

    alter(pipeline, "drafter:to_target_ids", change)


@fault(
    "token-of-the-padded-end",
    "the first token is the choice of the prompt's last padded row",
    "target.tokens",
    "prefill",
    "greedy id of the prompt's last row",
    "last row of a prompt whose length is not a multiple of 32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits):
        def padded(value):
            value[:, np.count_nonzero(at.positions < TRASH) - 1] = value[:, -1]
            return value

        made = clean(logits)
        return at.changed(made, padded) if at.kind == "prefill" else made

    alter(pipeline, "target:greedy", change)
