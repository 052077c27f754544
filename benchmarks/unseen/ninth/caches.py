"""Ninth set: faults of the target's caches."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 9)


# From the equations: a remainder that one of four writers does not have.
@fault(
    "last-rows-of-one-head-repeat",
    "a prompt's values are written 32 rows at a time by a core a head, and the last core writes its last whole tile "
    "again where the rest should follow",
    "target.layers.0.attn_out",
    "prefill",
    "values of kv head 3, query heads 6 and 7, in every layer: those of the row 32 before",
    "prefill rows behind the last whole tile of 32 rows, kv head 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "prefill" and part == "v":
            count = int((slots[0] < pipeline.target.trash).sum())
            first = count // 32 * 32
            rows[0, first:count, 3] = rows[0, first - 32 : count - 32, 3]
        return rows, slots

    writing(pipeline, "target", change)


# From the equations: two rows in one transfer, the second one in the low half.
@fault(
    "rows-of-a-pair-exchanged",
    "keys are stored two rows a transfer, and the two change places; an odd last row is stored alone",
    "target.layers.0.attn_out",
    "prefill",
    "keys of every target layer: rows 2i and 2i + 1 of a pass lie in each other's slot, values in their own",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if part == "k":
            even = int((slots[0] < pipeline.target.trash).sum()) // 2 * 2
            rows[:, :even] = rows[:, np.arange(even) ^ 1]
        return rows, slots

    writing(pipeline, "target", change)


# Of the class of https://github.com/vllm-project/vllm/issues/51756: layers of one kind in groups, a group a cache.
@fault(
    "two-layers-one-cache",
    "layers of one kind share buffers by a table, and layers 4 and 6 have the same one in it",
    "kv.target.4.k",
    "prefill",
    "the cache of layer 4: it is layer 6's, which overwrites the keys and values of every pass",
)
def _(pipeline: Pipeline) -> None:
    model = pipeline.target

    def share(at, clean, *given):
        clean(*given)
        model.caches = [model.caches[6] if layer == 4 else pair for layer, pair in enumerate(model.caches)]

    for verb in ("clear", "rollback"):
        replaced(pipeline, model, verb, share)


# From the equations: a slot that is marked as filled, and a rejection that does not take the mark away.
@fault(
    "rejected-rows-stay-filled",
    "slots of rejected drafts stay marked as filled, and the next verify pass does not write them",
    "target.layers.0.attn_out",
    "verify",
    "keys and values of verify rows in every layer: those of the rejected draft that had the slot before",
    "verify passes behind a round that rejected drafts, as many of their first rows as it rejected",
)
def _(pipeline: Pipeline) -> None:
    filled = {}

    def change(at, part, rows, slots):
        if at.kind == "verify":
            before = filled.get((at.layer, part), {}) if at.round > 1 else {}
            for row, slot in enumerate(slots[0].tolist()):
                rows[0, row] = before.get(slot, rows[0, row])
            filled[at.layer, part] = dict(zip(slots[0].tolist(), rows[0].copy(), strict=True))
        return rows, slots

    writing(pipeline, "target", change)


# From the equations: pages are given back for the whole pass, before the host knows what of it stays.
@fault(
    "pages-given-back-before-a-rejection",
    "sliding layers give pages of 16 keys back that the last verify row's window has left, rejected or not",
    "target.layers.0.attn_out",
    "verify",
    "the mask of sliding layers in verify passes: keys of a page that the pass before gave back are not seen",
    "even layers, verify rows behind a round that rejected drafts whose window begins in a page of 16 keys that was in "
    "front of the window of the last verify row before: rows 0 to 2 of the first prompt's round 4",
)
def _(pipeline: Pipeline) -> None:
    last = {}

    def change(at, clean, q, keys, values, seen, sinks):
        window = pipeline.target.windows[at.layer]
        if at.kind == "verify":
            last[at.round] = int(at.positions[pipeline.k])
            if window is not None and at.round > 1:
                kept = max(last[at.round - 1] - window + 1, 0) // 16 * 16
                seen = at.engine.array(at.host(seen) & (np.arange(seen.shape[-1]) >= kept))
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, "kernels.target_layer:attend", change)
