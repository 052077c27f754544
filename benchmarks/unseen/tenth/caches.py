"""Tenth set: faults of the target's caches."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 10)


# From the equations: keys stored across, a tile of slots at a time.
@fault(
    "last-slot-of-a-tile-half-stored",
    "keys are stored across, 64 slots a tile, and the second half of a head ends one slot before its tile does",
    "target.layers.0.attn_out",
    "prefill",
    "keys in the last slot of each tile of 64, in every target layer: columns 16 to 31 of each head stay zero",
    "keys at positions 63 and 127; the rows that see one",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if part == "k":
            rows[0, slots[0] % 64 == 63, :, 16:] = 0
        return rows, slots

    writing(pipeline, "target", change)


# Of the class of https://github.com/tenstorrent/tt-metal/pull/45184: bounded caches of sliding layers.
@fault(
    "ring-without-room-for-drafts",
    "sliding layers keep a ring of 32 slots, and all rows of a verify pass are written before the first one attends",
    "target.layers.0.attn_out",
    "verify",
    "keys and values of sliding layers in verify passes: those that later rows of the pass overwrote are not seen",
    "verify passes, even layers, all rows but the last",
    "pass = verify and layer % 2 = 0 and row < 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        window = pipeline.target.windows[at.layer]
        if at.kind == "verify" and window is not None:
            last = int(at.positions[at.positions < pipeline.target.trash].max())
            seen = at.engine.array(at.host(seen) & (np.arange(seen.shape[-1]) > last - window))
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, "kernels.target_layer:attend", change)


# From the equations: one scale for both halves of a cache.
@fault(
    "values-by-the-scale-of-keys",
    "a layer's values are cached in integers of eight bits by the scale that its keys would have",
    "target.layers.0.attn_out",
    "prefill",
    "values of every target layer as they are cached: in steps of 1/127 of the largest key of the pass",
)
def _(pipeline: Pipeline) -> None:
    steps = {}

    def change(at, part, rows, slots):
        if part == "k":
            steps[at.layer] = np.abs(rows[0, slots[0] < pipeline.target.trash]).max() / np.float32(127)
            return rows, slots
        step = steps[at.layer]
        return np.clip(np.round(rows / step), -127, 127) * step, slots

    writing(pipeline, "target", change)


# Of the class of https://github.com/NVIDIA/TensorRT-LLM/pull/17110: counts that a captured graph has from before.
@fault(
    "rows-written-by-the-count-before",
    "a verify pass writes as many rows as the round before emitted tokens, and all of them in a prompt's first round",
    "target.layers.0.attn_out",
    "verify",
    "keys and values of a verify pass' later rows in every target layer: they stay zero",
    "verify passes behind a round that rejected a draft, rows from the number of tokens on that it emitted",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "verify" and at.accepted is not None:
            rows[0, at.accepted + 1 :] = 0
        return rows, slots

    writing(pipeline, "target", change)
