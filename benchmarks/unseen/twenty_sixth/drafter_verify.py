"""Faults of the verify pass: its ids, its window, its head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, replaced, scaled
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import instead
from parity.device.pipeline import Pipeline

fault = Part("verify", 26)


@fault(
    "verify-window-begins-at-the-first-row",
    "in a verify pass the sliding window of every row begins where the first row's does",
    "target.layers.0.attn_out",
    "verify",
    "window's start of the verify rows behind the first, sliding layers",
    "verify rows behind the first, in sliding layers",
    "pass = verify and row > 0 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        made = clean(rows)
        if at.kind != "verify":
            return made
        key = np.arange(made.span)
        causal = rows.positions[:, :, None] >= key
        begins = {
            window: seen if window is None else causal & (rows.positions[:, :1, None] - key < window)
            for window, seen in made.seen.items()
        }
        return replace(made, seen=begins)

    replaced(pipeline, pipeline.target, "step", change)


@fault(
    "verify-ids-behind-the-fourth-row-are-stale",
    "a round copies four ids into the verify pass' buffer: later rows keep the ids of an earlier round",
    "target.embed",
    "verify",
    "ids of the fourth draft and those behind it",
    "verify rows from the fifth on",
    "pass = verify and row >= 4",
)
def _(pipeline: Pipeline) -> None:
    held = np.zeros(pipeline.k + 1, np.int64)

    def make(clean):
        def target_pass(ids, width, group, record):
            if group == "verify":
                given, ids = ids, np.append(ids[:4], held[4 : len(ids)])
                held[: len(given)] = given
            return clean(ids, width, group, record)

        return target_pass

    instead(pipeline, "_target_pass", make)


@fault(
    "verify-head-leaves-out-its-last-tile",
    "the head of a verify pass runs over full tiles of 512 columns: logits from 1024 on stay zero",
    "verify.logits",
    "verify",
    "verify logits 1024 to 1279",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        made = clean(*given)
        return at.changed(made, scaled(slice(1024, None), 0.0)) if at.kind == "verify" else made

    alter(pipeline, "target:linear", change)
