"""Faults of the drafter's attention, its rotation and its cache."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, writing
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("attention of the drafter", 25)
FIRST, KERNELS = "drafter.layers.0.attn_out", "kernels.drafter_layer:"
DIM = 32


@fault(
    "fourth-value-head-copies-third-once",
    "the loader cuts the value projection of kv head 3 of layer 1 where that of head 2 lies",
    "drafter.layers.1.attn_out",
    "prefill",
    "layer 1's value weight, kv head 3",
)
def _(pipeline: Pipeline) -> None:
    def copied(value):
        value = value.copy()
        value[:, 3 * DIM : 4 * DIM] = value[:, 2 * DIM : 3 * DIM]
        return value

    edit(pipeline.drafter, "v", copied, [1])


@fault(
    "masked-rows-miss-last-committed-key",
    "masked rows do not see the key of the last committed row of their pass",
    FIRST,
    "draft",
    "mask of masked rows, in every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        if at.kind == "draft" and at.masked:
            count, allowed = at.committed, at.host(seen)
            allowed[:, count : count + at.masked, pipeline.drafter.length + count - 1] = False
            seen = at.array(allowed, seen)
        return clean(q, keys, values, seen)

    alter(pipeline, KERNELS + "attend", change)


@fault(
    "drafter-frequencies-start-one-late",
    "pair i of the drafter's heads turns by the frequency of pair i + 1",
    FIRST,
    "prefill",
    "frequencies of the drafter's rotation, in every layer",
)
def _(pipeline: Pipeline) -> None:
    model = pipeline.drafter

    def later(table):
        host = model.engine.host(table).astype(np.float32)
        return model.engine.array(np.concatenate([host[:, 1:], host[:, -1:]], axis=1), np.float32)

    model.tables = tuple(later(table) for table in model.tables)


@fault(
    "output-projection-forgets-two-heads-once",
    "the output projection of layer 2 sums the first 320 of its 384 inputs: heads 10 and 11 are skipped",
    "drafter.layers.2.attn_out",
    "prefill",
    "layer 2's output weight, inputs 320 to 383",
)
def _(pipeline: Pipeline) -> None:
    def cut(value):
        value = value.copy()
        value[10 * DIM :] = 0
        return value

    edit(pipeline.drafter, "o", cut, [2])


@fault(
    "prefill-key-of-last-row-unwritten",
    "the last row of a prefill does not write its key in layer 1",
    "drafter.layers.1.attn_out",
    "prefill",
    "layer 1's key cache, last row of the prompt",
)
def _(pipeline: Pipeline) -> None:
    model = pipeline.drafter

    def change(at, part, rows, slots):
        if at.kind == "prefill" and at.layer == 1 and part == "k":
            logical = np.flatnonzero(slots[0] != model.trash)
            slots = slots.copy()
            slots[0, logical[-1]] = model.trash
        return rows, slots

    writing(pipeline, "drafter", change)
