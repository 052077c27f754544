"""Faults of the target's embedding, norms and projections."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("target embedding, norms and projections", 22)
NORM, LINEAR = "kernels.target_layer:gpt_oss_norm", "kernels.target_layer:linear"


@fault(
    "embedding-int8-rows",
    "the embedding table is loaded through int8 with one scale a row",
    "target.embed",
    "prefill",
    "numbers of the embedding table",
)
def _(pipeline: Pipeline) -> None:
    def narrow(value):
        scale = np.maximum(np.abs(value).max(axis=1, keepdims=True), 1e-12) / 127
        return np.round(value / scale) * scale

    edit(pipeline.target, "embed", narrow)


@fault(
    "added-tokens-mean-embedding",
    "the added tokens at the end of the vocabulary have the mean embedding, as a resized table gives them",
    "target.embed",
    "prefill",
    "embedding of ids from 1264 on",
    "rows whose token id is 1264 or larger",
)
def _(pipeline: Pipeline) -> None:
    def resized(value):
        return np.concatenate([value[:1264], 0 * value[1264:] + value[:1264].mean(axis=0)])

    edit(pipeline.target, "embed", resized)


@fault(
    "stale-first-id-behind-rejection",
    "behind a round that accepted nothing the first verify row embeds the rejected first draft, not the correction",
    "target.embed",
    "verify",
    "token id of the first verify row",
    "the first row of a verify pass behind a round that accepted no draft",
    "pass = verify and accepted = 0 and row = 0",
)
def _(pipeline: Pipeline) -> None:
    before: dict[str, Any] = {}

    def change(at, clean, rows):
        ids = rows.ids.copy()
        if at.kind == "verify":
            if at.accepted == 0 and before.get("ids") is not None and before["ids"].shape[1] > 1:
                ids[0, 0] = before["ids"][0, 1]
            before["ids"] = rows.ids
        return clean(replace(rows, ids=ids))

    replaced(pipeline, pipeline.target, "embedded", change)


@fault(
    "post-norm-padded-width",
    "the norm in front of the experts divides the sum of squares by the padded width 128, not by 96",
    "target.layers.0.router_logits",
    "prefill",
    "divisor of the mean square in the post-attention norm of every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        post = weight is pipeline.target.layers[at.layer]["post_norm"]
        return at.changed(made, lambda value: value * (128 / 96) ** 0.5) if post else made

    alter(pipeline, NORM, change)


@fault(
    "input-norm-fifth-row",
    "the input norm of a verify pass has room for the statistics of four rows: later rows take the fourth's",
    "target.layers.0.attn_in",
    "verify",
    "root mean square of rows from 4 on in the input norm of every layer",
    "rows from 4 on of a verify pass",
    "pass = verify and row >= 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        if at.kind != "verify" or weight is not pipeline.target.layers[at.layer]["input_norm"] or x.shape[1] < 5:
            return clean(x, weight, eps)
        value = at.host(x)
        rms = np.sqrt(np.mean(value**2, axis=-1, keepdims=True) + eps)
        rms[:, 4:] = rms[:, 3:4]
        return at.array(value / rms * at.host(weight), x)

    alter(pipeline, NORM, change)


@fault(
    "key-bias-left-interleaved",
    "the key bias keeps the interleaved order of each head's halves that the weight was converted from",
    "target.layers.0.k",
    "prefill",
    "order of the key bias within each head, every layer",
)
def _(pipeline: Pipeline) -> None:
    def interleaved(value):
        return value.reshape(-1, 2, 16).swapaxes(1, 2).reshape(-1)

    edit(pipeline.target, "k_bias", interleaved, every(pipeline.target))


@fault(
    "value-bias-first-tile-only",
    "the value projection adds its bias in the first tile of 128 prompt rows alone",
    "target.layers.0.v",
    "prefill",
    "value bias of rows from 128 on, every layer",
    "rows from 128 on of a prefill",
    "pass = prefill and row >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        made = clean(x, weight, bias)
        if at.kind != "prefill" or weight is not pipeline.target.layers[at.layer]["v"]:
            return made
        value, bare = at.host(made), at.host(clean(x, weight, at.changed(bias, np.zeros_like)))
        return at.array(np.concatenate([value[:, :128], bare[:, 128:]], axis=1), made)

    alter(pipeline, LINEAR, change)
