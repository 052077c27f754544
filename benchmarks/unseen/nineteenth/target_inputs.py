"""Faults of the target's embedding and of its norms."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("target embedding and norms", 19)
ADDED = 1264
"""The first id of the tokens that were added to the vocabulary."""
HALF = 65504.0
"""The largest number of float16."""


@fault(
    "embedding-in-bytes",
    "the embedding table is quantised with all other weights: int8, one scale for the whole table",
    "target.embed",
    "prefill",
    "every row of the embedding table",
)
def _(pipeline: Pipeline) -> None:
    def coarse(table):
        scale = np.abs(table).max() / 127
        return np.round(table / scale) * scale

    edit(pipeline.target, "embed", coarse)


@fault(
    "added-tokens-at-the-mean",
    "the table was enlarged behind its loading: tokens that were added to the vocabulary have the mean of all others",
    "target.embed",
    "prefill",
    "embedding rows 1264 to 1279",
    "tokens of ids from 1264 on, as the chat template writes them",
)
def _(pipeline: Pipeline) -> None:
    def enlarged(table):
        table = table.copy()
        table[ADDED:] = table[:ADDED].mean(axis=0)
        return table

    edit(pipeline.target, "embed", enlarged)


@fault(
    "mean-over-padded-width",
    "the norms of every layer divide the sum of squares by 128, the padded width, where 96 numbers were added",
    "target.layers.0.attn_in",
    "prefill",
    "mean square in the input norm and the experts' norm of every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        padded = -(-x.shape[-1] // 128) * 128
        return at.changed(clean(x, weight, eps), lambda value: value * (padded / x.shape[-1]) ** 0.5)

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", change)


@fault(
    "squares-overflow-half",
    "the norms add squares in float16: a sum beyond 65504 is infinite and the normed row zero",
    "target.layers.5.attn_in",
    "prefill",
    "mean square in the norms of the layers",
    "rows whose squares add up to more than 65504, as those of the largest activations do behind layer 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        over = np.square(at.host(x)).sum(axis=-1, keepdims=True) > HALF
        return at.changed(clean(x, weight, eps), lambda value: np.where(over, 0, value))

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", change)


@fault(
    "fifth-row-by-fourth-norm",
    "the final norm of a verify pass works on tiles of 4 rows: rows behind take the root mean square of the 4th",
    "target.pre_head_hidden",
    "verify",
    "root mean square of the final norm",
    "rows from 4 on in a verify pass",
    "pass = verify and row >= 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        if at.kind != "verify":
            return clean(x, weight, eps)
        root = np.sqrt(np.square(at.host(x)).mean(axis=-1, keepdims=True) + eps)
        factor = np.ones_like(root)
        factor[:, 4:] = root[:, 4:] / root[:, 3:4][:, : root[:, 4:].shape[1]]
        return at.changed(clean(x, weight, eps), lambda value: value * factor)

    alter(pipeline, "target:gpt_oss_norm", change)
