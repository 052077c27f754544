"""Faults of the target's caches: pages, rings, rows that are not written, a layer's place."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment, replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target caches", 23)
OUT = "target.layers.0.attn_out"


@fault(
    "layer-7-in-cache-of-layer-5",
    "layer 7 writes and reads the cache of layer 5",
    "kv.target.5.k",
    "prefill",
    "cache that layer 7 is given",
)
def _(pipeline: Pipeline) -> None:
    moment(pipeline)

    def change(_, clean, held, *rest):
        target = pipeline.target
        own = target.caches[held]
        if held == 7:
            target.caches[held] = target.caches[5]
        try:
            return clean(held, *rest)
        finally:
            target.caches[held] = own

    replaced(pipeline, pipeline.target, "layer", change)


@fault(
    "verify-page-looked-up-once",
    "a verify pass looks its page of 16 rows up once: rows behind the page's end go to the page's start",
    OUT,
    "verify",
    "slots that keys and values are written to",
    "verify passes whose rows cross a multiple of 16; in the pass, rows from there on",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "verify":
            page = slots[0, 0] // 16 * 16
            slots = np.where(slots != pipeline.target.trash, page + slots % 16, slots)
        return rows, slots

    writing(pipeline, "target", change)


@fault(
    "ring-of-window-overwritten-by-verify",
    "sliding layers keep a ring of 32 rows: all rows of a verify pass are written before the first one looks back",
    OUT,
    "verify",
    "oldest keys of the window in sliding layers",
    "verify rows before the last one of their pass, in sliding layers",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        if at.kind == "verify" and pipeline.target.windows[at.layer] is not None:
            positions = at.positions
            last = positions[positions != pipeline.target.trash].max()
            seen = at.changed(seen, lambda value: value & (np.arange(value.shape[-1]) > last - 32))
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, "kernels.target_layer:attend", change)


@fault(
    "slot-behind-rejection-taken-for-filled",
    "behind a round that accepted nothing the slot of the first verify row is taken for filled, and not written",
    OUT,
    "verify",
    "keys and values of the first verify row",
    "verify passes behind a round that accepted no draft",
    "pass = verify and accepted = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "verify" and at.accepted == 0:
            slots = slots.copy()
            slots[0, 0] = pipeline.target.trash
        return rows, slots

    writing(pipeline, "target", change)
