"""Faults of how the target's caches are written and how far they are read."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline
from parity.device.rows import round_up

fault = Part("target caches", 26)


@fault(
    "value-cache-rows-kept-transposed",
    "layer 6 keeps its values with the head size in front of the heads, and reads them with the heads in front",
    "target.layers.6.attn_out",
    "prefill",
    "layout of a cached row of values in layer 6",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        mine = part == "v" and at.layer == 6
        return (rows.swapaxes(2, 3).reshape(rows.shape) if mine else rows), slots

    writing(pipeline, "target", change)


@fault(
    "verify-rows-wrap-in-their-page",
    "the page of 16 is looked up once for a verify pass: rows behind its end go to its beginning",
    "target.layers.0.attn_out",
    "verify",
    "slots of keys and values behind the end of the first row's page",
    "verify rows in another page of 16 than the first row of their pass",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        return rows, (slots[:, :1] // 16 * 16 + slots % 16 if at.kind == "verify" else slots)

    writing(pipeline, "target", change)


@fault(
    "captured-verify-keeps-first-span",
    "the graph of a verify pass is captured in round 1 with its number of pages of 16 keys, and replayed from then on",
    "target.layers.0.attn_out",
    "verify",
    "keys behind the last page of round 1's verify pass, in every layer",
    "verify rows from round 2 on, at positions behind the page of 16 that round 1's pass ended in",
)
def _(pipeline: Pipeline) -> None:
    captured = {}

    def change(at, clean, q, keys, values, seen, sinks):
        def short(value):
            return value & (np.arange(value.shape[-1]) < captured["span"])

        if at.kind == "verify" and at.round == 1:
            captured["span"] = round_up(int(at.positions.max()) + 1, 16)
        return clean(q, keys, values, at.changed(seen, short) if at.kind == "verify" else seen, sinks)

    alter(pipeline, "kernels.target_layer:attend", change)
