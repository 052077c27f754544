"""Faults of the target's attention behind its projections: masks, scores, softmax."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.planting import Part, alter
from parity.device.pipeline import Pipeline

fault = Part("target attention")
ATTEND = "kernels.target_layer:attend"
QUERIES = 8
"""Heads of queries."""


@fault(
    "score-scale-of-padded-head",
    "layer 3 scales scores by the root of a head padded to 36",
    "target.layers.3.attn_out",
    "prefill",
    "score scale of layer 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, *rest):
        return clean(at.changed(q, lambda value: value * (32 / 36) ** 0.5) if at.layer == 3 else q, *rest)

    alter(pipeline, ATTEND, change)


@fault(
    "kv-groups-exchanged-in-verify",
    "layer 4 reads kv groups 1 and 2 exchanged in verify passes",
    "target.layers.4.attn_out",
    "verify",
    "kv groups 1 and 2 of layer 4",
    "verify passes, layer 4",
    "pass = verify and layer = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, *rest):
        if at.layer == 4 and at.kind == "verify":
            keys, values = (at.changed(one, lambda value: value[:, :, [0, 2, 1, 3]]) for one in (keys, values))
        return clean(q, keys, values, *rest)

    alter(pipeline, ATTEND, change)


@fault(
    "sink-lost-over-long-cache",
    "head 7 loses its sink where more than 135 rows are cached",
    "target.layers.0.attn_out",
    "verify",
    "sink of head 7 of every layer",
    "passes over more than 135 cached rows",
    "cached > 135",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        if pipeline.target.length > 135:
            sinks = at.changed(sinks, lambda value: np.where(np.arange(QUERIES) == 7, -1e4, value))
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "window-short-at-tile-start",
    "the window of even layers is one key short for the first row of a tile of 16",
    "target.layers.0.attn_out",
    "prefill",
    "mask of sliding-window layers",
    "rows at multiples of 16, even layers",
    "position % 16 = 0 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        def narrowed(value):
            short = (at.positions % 16 == 0)[:, None]
            oldest = np.arange(value.shape[-1]) == (at.positions - 31)[:, None]
            return np.where(short & oldest, False, value)

        return clean(q, keys, values, at.changed(seen, narrowed) if at.layer % 2 == 0 else seen, sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "head-0-stale-tile",
    "rows of a prefill from 64 on repeat head 0's output of 64 rows before in layer 2",
    "target.layers.2.attn_out",
    "prefill",
    "head 0 of layer 2",
    "prefill rows from 64 on, layer 2",
    "pass = prefill and row >= 64 and layer = 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        made = clean(*given)

        def stale(value):
            value[:, 64:, :32] = value[:, : value.shape[1] - 64, :32].copy()
            return value

        return at.changed(made, stale) if at.layer == 2 and at.kind == "prefill" else made

    alter(pipeline, ATTEND, change)


@fault(
    "drafted-rows-blind-to-themselves",
    "drafted rows of a verify pass do not see their own key in layer 5",
    "target.layers.5.attn_out",
    "verify",
    "mask of layer 5",
    "verify rows but the first, layer 5",
    "pass = verify and row > 0 and layer = 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        def blind(value):
            own = np.arange(value.shape[-1]) == at.positions[:, None]
            own[0] = False
            return value & ~own

        there = at.layer == 5 and at.kind == "verify"
        return clean(q, keys, values, at.changed(seen, blind) if there else seen, sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "first-keys-forgotten",
    "full-attention layers skip the first 8 keys where more than 130 rows are cached",
    "target.layers.1.attn_out",
    "verify",
    "mask of odd layers, keys 0 to 7",
    "passes over more than 130 cached rows, odd layers",
    "cached > 130 and layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        there = at.layer % 2 == 1 and pipeline.target.length > 130
        forgotten = at.changed(seen, lambda value: value & (np.arange(value.shape[-1]) >= 8)) if there else seen
        return clean(q, keys, values, forgotten, sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "probabilities-in-eighths",
    "attention weights of layer 7 are kept in fp8 (e4m3) before they meet the values",
    "target.layers.7.attn_out",
    "prefill",
    "softmax weights of layer 7",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        made = clean(*given)
        return at.changed(made, lambda value: value.astype(float8_e4m3fn).astype(np.float32)) if at.layer == 7 else made

    alter(pipeline, "kernels.attention:softmax", change)


@fault(
    "queries-in-eighths",
    "queries of heads 4 and 5 are rounded to fp8 (e4m3) before their scores",
    "target.layers.0.attn_out",
    "prefill",
    "queries of heads 4 and 5 of every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, *rest):
        def narrow(value):
            value[:, :, 4:6] = value[:, :, 4:6].astype(float8_e4m3fn).astype(np.float32)
            return value

        return clean(at.changed(q, narrow), *rest)

    alter(pipeline, ATTEND, change)
