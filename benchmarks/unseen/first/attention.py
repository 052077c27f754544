"""Faults of the target's scores, softmax and mixed values."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target attention")
ATTEND = "kernels.target_layer:attend"


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
