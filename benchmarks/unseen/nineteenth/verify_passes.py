"""Faults of the verify pass: its ids, masks and sinks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("verify", 19)
ATTENTION = "target.layers.0.attn_out"


@fault(
    "verify-window-of-first-row",
    "every row of a verify pass begins its sliding window where the first row does",
    ATTENTION,
    "verify",
    "window of verify rows behind the first in sliding layers: up to four keys too many",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        made = clean(rows)
        if at.kind != "verify":
            return made
        key, position = np.arange(made.span), rows.positions[0, : rows.count, None]
        seen = {window: at.host(one) for window, one in made.seen.items()}
        for window in (one for one in seen if one is not None):
            seen[window][0, : rows.count] = (key <= position) & (position[0] - key < window)
        return replace(made, seen={window: at.engine.array(one) for window, one in seen.items()})

    replaced(pipeline, pipeline.target, "step", change)


@fault(
    "last-verify-row-stale",
    "behind a round that accepted nothing the last draft of the round before is verified once more",
    "target.embed",
    "verify",
    "token id of the last verify row",
    "the last verify row of a round behind one that accepted no draft",
    "pass = verify and accepted = 0 and row = 4",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, ids, *rest):
        if at.kind == "verify":
            due = ids[-1]
            if at.accepted == 0 and len(ids) == pipeline.k + 1:
                ids = np.append(ids[:-1], held["last"])
            held["last"] = due
        return clean(ids, *rest)

    replaced(pipeline, pipeline, "_target_pass", change)


@fault(
    "sink-in-each-split",
    "with more than 128 cached rows a verify pass splits its keys in two, and each split counts the sink",
    ATTENTION,
    "verify",
    "weight of the sinks, twice what it should be",
    "verify passes with more than 128 cached rows",
    "pass = verify and cached > 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        if at.kind == "verify" and pipeline.target.length > 128:
            sinks = at.changed(sinks, lambda value: value + np.log(2.0))
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, "kernels.target_layer:attend", change)
