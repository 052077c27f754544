"""Faults of the taps, of the masked rows' hidden and of the ids beside them."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("taps and fuse", 15)
TAPS = "drafter.taps"
MOST = 5
"""Committed rows of a draft pass at the most."""


@fault(
    "deepest-tap-first", "the three taps are joined from the deepest to the first", TAPS, "prefill", "order of the taps"
)
def _(pipeline: Pipeline) -> None:
    replaced(pipeline, pipeline.target, "join", lambda at, clean, streams, taps: clean(streams, taps[::-1]))


@fault(
    "tap-of-the-token-itself",
    "each row pairs the token behind a position with the taps of that token, one row late",
    TAPS,
    "prefill",
    "row of the taps: one late",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, first, *rest):
        return clean(taps, first + 1, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


@fault(
    "prefill-ids-not-shifted",
    "the drafter's prefill pairs each position's taps with that position's own token",
    "drafter.input_ids",
    "prefill",
    "ids of the drafter's prefill: not shifted by one",
    "prefill passes",
    "pass = prefill",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, prompt, *rest):
        return clean(np.concatenate([prompt[:1], prompt[:-1]]), *rest)

    replaced(pipeline, pipeline, "_prefill_drafter", change)


@fault(
    "late-rows-from-the-buffer-before",
    "the third committed row and later ones have the taps that the buffer held in the round before",
    TAPS,
    "draft",
    "taps of committed rows from row 2 on",
    "committed rows from row 2 on of drafts from round 2 on",
    "pass = draft and round >= 2 and row >= 2",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, taps, first, count, *rest):
        if at.kind != "draft":
            return clean(taps, first, count, *rest)
        fresh = at.host(taps)[:, first : first + MOST]
        fresh = np.concatenate([fresh, np.zeros_like(fresh[:, :1]).repeat(MOST - fresh.shape[1], axis=1)], axis=1)
        before, held["taps"] = held.get("taps", np.zeros_like(fresh)), fresh

        def stale(value):
            value[:, first + 2 : first + count] = before[:, 2:count]
            return value

        return clean(at.changed(taps, stale) if count > 2 else taps, first, count, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


@fault(
    "mask-hidden-shares-the-tap-buffer",
    "the first prompt's prefill writes its last tap over the learnt mask hidden",
    "drafter.fc_out",
    "draft",
    "mask_hidden: overwritten by a tap",
    "masked rows of the second prompt",
    "prompt > 1 and pass = draft",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, taps, mask_hidden, committed, fc):
        if at.kind == "prefill" and at.prompt == 1:
            count = int(at.host(committed)[0])
            held["mask"] = at.host(taps)[:, count - 1 : count]
        elif at.kind == "draft" and at.prompt > 1 and held:
            mask_hidden = at.array(held["mask"], mask_hidden)
        return clean(taps, mask_hidden, committed, fc)

    alter(pipeline, "peagle:fuse", change)
