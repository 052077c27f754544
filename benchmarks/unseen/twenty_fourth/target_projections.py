"""Faults of the target's embedding, norms, projections and rotation."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.kernels.rope import frequencies
from parity.device.pipeline import Pipeline
from parity.device.rope_config import RopeConfig

fault = Part("embedding, norms and projections", 24)
TILE = 128
"""Rows of a tile of queries, and the width that a hidden vector is padded to."""


@fault(
    "embed-last-vocab-shard-index-short",
    "the last of four vocabulary shards of the embedding is indexed one row too low",
    "target.embed",
    "prefill",
    "rows of the embedding table from id 960 on",
    "rows whose token id is 960 or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, table):
        return clean(at.changed(ids, lambda value: np.where(value >= 960, value - 1, value)), table)

    alter(pipeline, "target:embed", change)


@fault(
    "final-norm-mean-over-padded-width",
    "the final norm divides the sum of squares by the padded width of 128 where 96 is meant",
    "target.pre_head_hidden",
    "prefill",
    "mean of squares of the final norm",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        return clean(x, weight, eps * TILE / x.shape[-1]) * float((TILE / x.shape[-1]) ** 0.5)

    alter(pipeline, "target:gpt_oss_norm", change)


@fault(
    "layer-six-norm-weights-cross-loaded",
    "input norm and post-attention norm of layer 6 hold each other's weight",
    "target.layers.6.attn_in",
    "prefill",
    "norm weights of layer 6",
)
def _(pipeline: Pipeline) -> None:
    held = pipeline.target.layers[6]
    held["input_norm"], held["post_norm"] = held["post_norm"], held["input_norm"]


@fault(
    "verify-post-norm-square-sum-tail",
    "the few-row kernel of the post-attention norm sums squares of the first 64 columns and divides by 96",
    "target.layers.0.router_logits",
    "verify",
    "mean of squares of the post-attention norm in every layer",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        if at.kind != "verify" or weight is not pipeline.target.layers[at.layer]["post_norm"]:
            return made
        wide = at.host(x)
        whole, cut = (np.square(wide[..., :end]).sum(-1, keepdims=True) / wide.shape[-1] for end in (None, 64))
        return at.changed(made, lambda value: value * np.sqrt((whole + eps) / (cut + eps)))

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", change)


@fault(
    "fused-bias-split-key-value-order",
    "the fused bias of q, k and v is cut in the order q, v, k",
    "target.layers.0.k",
    "prefill",
    "biases of k and v in every layer",
)
def _(pipeline: Pipeline) -> None:
    for held in pipeline.target.layers:
        held["k_bias"], held["v_bias"] = held["v_bias"], held["k_bias"]


@fault(
    "middle-value-heads-exchanged-layer-five",
    "value heads 1 and 2 of layer 5 are loaded in each other's place",
    "target.layers.5.v",
    "prefill",
    "kv heads 1 and 2 of the value projection of layer 5",
)
def _(pipeline: Pipeline) -> None:
    def change(value):
        return value.reshape(*value.shape[:-1], 4, -1)[..., [0, 2, 1, 3], :].reshape(value.shape)

    edit(pipeline.target, "v v_bias", change, [5])


@fault(
    "yarn-ramp-blends-wrong-ends",
    "YaRN's ramp is taken the other way round: fast dimensions are interpolated, slow ones are kept",
    "target.layers.0.q",
    "prefill",
    "rotary frequencies of the target",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target
    rope, dim = target.rope, target.config.attention.head_dim
    plain = frequencies(RopeConfig("default", rope.theta), dim)
    turned = plain + plain / rope.factor - frequencies(rope, dim)
    angles = np.arange(target.positions)[:, None] * turned
    array = target.engine.array
    target.tables = tuple(array((wave(angles) * rope.magnitude).astype(np.float32)) for wave in (np.cos, np.sin))


@fault(
    "query-rotation-second-row-tile-restarts",
    "queries of a prefill's second tile of 128 rows are rotated by the angles of its first tile",
    "target.layers.0.q",
    "prefill",
    "angles of query rows from 128 on",
    "rows from 128 on of a prefill",
    "pass = prefill and row >= 128",
)
def _(pipeline: Pipeline) -> None:
    heads = pipeline.target.config.attention.heads

    def change(at, clean, x, cos, sin):
        if at.kind != "prefill" or x.shape[2] != heads:
            return clean(x, cos, sin)
        rows = np.arange(x.shape[1]) % TILE
        return clean(x, cos[:, rows], sin[:, rows])

    alter(pipeline, "kernels.target_layer:rotate", change)
