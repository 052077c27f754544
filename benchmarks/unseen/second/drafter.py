"""Second set: faults of the drafter's layers."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("drafter layers", 2)
LAYER = "kernels.drafter_layer"


@fault(
    "key-groups-turned-round",
    "the key weights of layer 1's kv groups stand in the order 1, 2, 3, 0",
    "drafter.layers.1.attn_out",
    "prefill",
    "key weight of layer 1",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "k", lambda value: np.roll(value, -32, axis=1), [1])


@fault(
    "masked-residual-normed",
    "masked rows take the normed fused hidden as layer 0's residual",
    "drafter.layers.0.ffn_out",
    "draft",
    "residual of layer 0",
    "masked rows, layer 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, residual, normed, *rest):
        def taken(value):
            rows = slice(at.committed, at.committed + at.masked)
            value[:, rows] = at.host(normed)[:, rows, 96:]
            return value

        return clean(at.changed(residual, taken) if at.masked and at.layer == 0 else residual, normed, *rest)

    alter(pipeline, f"{LAYER}:_rest", change)


@fault(
    "wide-pass-norms-with-one-weight",
    "passes of more than 128 rows norm layer 0's fused hidden by the weight of its embedding",
    "drafter.layers.0.attn_out",
    "prefill",
    "hidden norm weight of layer 0",
    "prefill passes of more than 128 rows, layer 0",
    "pass = prefill and layer = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        mine = pipeline.drafter.layers[0]
        wide = weight is mine["hidden_norm"] and x.shape[1] > 128
        return clean(x, mine["input_norm"] if wide else weight, eps)

    alter(pipeline, f"{LAYER}:llama_norm", change)


@fault(
    "active-rounded-before-down",
    "layer 1's activation is rounded to bfloat16 before the down projection",
    "drafter.layers.1.ffn_out",
    "prefill",
    "input of layer 1's down projection",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        mine = weight is pipeline.drafter.layers[1]["down"]
        return clean(at.changed(x, lambda value: value.astype(bfloat16)) if mine else x, weight)

    alter(pipeline, f"{LAYER}:row_parallel", change)


@fault(
    "up-tail-of-the-row-before",
    "columns 192 to 223 of layer 0's up projection are those of the row before; the first row keeps its own",
    "drafter.layers.0.ffn_out",
    "prefill",
    "up projection of layer 0, columns 192 to 223",
    "rows but the first, layer 0",
    "row >= 1 and layer = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        made = clean(x, weight)

        def stale(value):
            value[:, 1:, 192:] = value[:, :-1, 192:].copy()
            return value

        return at.changed(made, stale) if weight is pipeline.drafter.layers[0]["up"] else made

    alter(pipeline, f"{LAYER}:linear", change)


@fault(
    "second-key-tile-twice",
    "drafts over 128 cached rows or more take keys 64 to 127 twice in layer 3",
    "drafter.layers.3.attn_out",
    "draft",
    "sum over key tiles of layer 3",
    "draft passes over 128 cached rows or more, layer 3",
    "pass = draft and cached >= 128 and layer = 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        if at.layer != 3 or at.kind != "draft" or pipeline.drafter.length < 128:
            return clean(q, keys, values, seen)
        doubled = (at.array(np.concatenate([at.host(one), at.host(one)[:, 64:128]], 1), one) for one in (keys, values))
        both = np.concatenate([at.host(seen), at.host(seen)[:, :, 64:128]], axis=2)
        return clean(q, *doubled, at.array(both, seen))

    alter(pipeline, f"{LAYER}:attend", change)


@fault(
    "drafter-tables-of-128-rows",
    "the drafter's rotation wraps: position 128 turns as position 0 does",
    "drafter.layers.0.attn_out",
    "prefill",
    "rotation of q and k of the drafter",
    "rows at positions from 128 on",
    "position >= 128",
)
def _(pipeline: Pipeline) -> None:
    def wrapped(value):
        return value[np.arange(len(value)) % 128]

    pipeline.drafter.tables = tuple(moment(pipeline).changed(one, wrapped) for one in pipeline.drafter.tables)
