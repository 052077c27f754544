"""Faults of the taps as the drafter takes them, and of its fc."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("taps and fc", 27)
WIDTH = 96
"""Of one tap."""


@fault(
    "verify-tap-buffer-of-four-rows",
    "the buffer of a verify pass's taps holds four rows: the fifth committed row and those behind repeat the fourth",
    "drafter.taps",
    "draft",
    "taps of committed rows from row 4 on",
    "committed rows of a draft from the fifth on",
    "pass = draft and row >= 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, first, *rest):
        def short(value):
            value[:, first + 4 :] = value[:, first + 3 : first + 4]
            return value

        few = at.kind != "draft" or at.committed < 5
        return clean(taps if few else at.changed(taps, short), first, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


@fault(
    "third-tap-wraps-at-128-partitions",
    "the copy of the third tap holds 128 rows and starts over: rows from 128 on get those of 128 rows before",
    "drafter.taps",
    "prefill",
    "third of three taps, columns 192 to 287",
    "rows of a prefill at position 128 and behind",
    "pass = prefill and position >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, *rest):
        def wrapped(value):
            value[:, 128:, 2 * WIDTH :] = value[:, : max(value.shape[1] - 128, 0), 2 * WIDTH :]
            return value

        return clean(at.changed(taps, wrapped) if at.kind == "prefill" else taps, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


@fault(
    "fc-sum-restarted-in-last-columns",
    "in fc's second tile of outputs the sum starts anew with the third tap: the first two taps are lost there",
    "drafter.fc_out",
    "prefill",
    "fc, outputs 64 to 95 from inputs 0 to 191",
)
def _(pipeline: Pipeline) -> None:
    def restarted(value):
        value = value.copy()
        value[: 2 * WIDTH, 64:] = 0
        return value

    edit(pipeline.drafter, "fc", restarted)


@fault(
    "mask-hidden-first-third-repeated",
    "the learnt hidden of masked rows is loaded as one tap's width and repeated for all three",
    "drafter.fc_out",
    "draft",
    "mask_hidden, numbers 96 to 287",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "mask_hidden", lambda value: np.tile(value[..., :WIDTH], 3))


@fault(
    "committed-count-of-draft-before-selects",
    "fc's choice between taps and the learnt hidden goes by how many rows the draft before had committed",
    "drafter.fc_out",
    "draft",
    "number of committed rows in the choice between taps and mask_hidden",
    "drafts with another number of committed rows than the draft before, from round 2 on",
)
def _(pipeline: Pipeline) -> None:
    held: dict[str, Any] = {}

    def change(at, clean, taps, committed):
        if at.kind != "draft":
            return clean(taps, committed)
        before = held.get("count", committed) if at.round > 1 else committed
        held["count"] = committed
        return clean(taps, before)

    replaced(pipeline, pipeline.drafter, "fused", change)
