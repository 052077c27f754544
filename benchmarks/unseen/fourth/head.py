"""Fourth set: faults of the heads of target and draft."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment, replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("embedding and head", 4)
LAST = 7
"""The target's last layer."""


@fault(
    "draft-head-of-the-target",
    "the draft head is the target's, of the ids that d2t names",
    "drafter.logits",
    "draft",
    "draft head weight",
)
def _(pipeline: Pipeline) -> None:
    at = moment(pipeline)
    offsets = at.host(pipeline.drafter.outer["d2t"])
    head = at.host(pipeline.target.outer["head"])
    edit(pipeline.drafter, "head", lambda value: head[:, np.arange(value.shape[-1]) + offsets])


@fault(
    "final-norm-before-the-last-addition",
    "the final norm of a verify pass takes the stream without the last layer's experts",
    "target.pre_head_hidden",
    "verify",
    "input of the final norm",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    added = {}

    def layer(at, clean, held, x, step, tap):
        def keep(part, value):
            added[part] = tap(part, value)
            return added[part]

        return clean(held, x, step, keep if held == LAST else tap)

    def change(at, clean, x, weight, eps):
        if at.kind == "verify":
            x = at.changed(x, lambda value: value - at.host(added["ffn_out"]))
        return clean(x, weight, eps)

    replaced(pipeline, pipeline.target, "layer", layer)
    alter(pipeline, "target:gpt_oss_norm", change)


@fault(
    "d2t-in-eight-bits",
    "d2t is kept in signed integers of eight bits: an offset of 128 or more loses 256",
    "drafter.draft_tokens",
    "draft",
    "d2t, offsets of 128 or more",
    "drafts among draft ids whose offset is 128 or more",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "d2t", lambda value: value.astype(np.int8).astype(value.dtype))
