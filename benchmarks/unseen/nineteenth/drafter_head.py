"""Faults of the draft head, the choice of drafts and the way to target ids."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("draft head", 19)


@fault(
    "draft-head-eight-bit",
    "the draft head is quantised to int8 with one scale for all of it",
    "drafter.logits",
    "draft",
    "weight of the draft head",
)
def _(pipeline: Pipeline) -> None:
    def eighths(value):
        scale = np.abs(value).max() / 127
        return np.round(value / scale) * scale

    edit(pipeline.drafter, "head", eighths)


@fault(
    "d2t-in-a-byte",
    "the offsets of d2t are kept in a byte and wrap at 256",
    "drafter.draft_tokens",
    "draft",
    "d2t of draft ids whose offset is 256 or more",
    "drafts whose offset in d2t is 256 or more",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "d2t", lambda value: value % 256)


@fault(
    "last-draft-row-clamped",
    "the head's input has one row too few: with five committed rows the last draft is read from the row before",
    "drafter.pre_head_hidden",
    "draft",
    "row that the last draft is read from",
    "the last draft behind a round that accepted all 4 drafts",
    "pass = draft and accepted = 4 and row = 7",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, *rest):
        width = x.shape[1]
        return clean(at.changed(x, lambda value: value[:, np.minimum(np.arange(width), width - 2)]), *rest)

    replaced(pipeline, pipeline.drafter, "choose", change)
