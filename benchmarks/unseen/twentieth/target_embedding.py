"""Faults of the target's embedding, and of its norms."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target embedding and norms", 20)
MARKUP = 1264
"""The first id of the chat format's own tokens, which stand behind the text's."""
TILE = 128
"""Rows of a norm's tile; columns that H is padded to."""


def normalised(wide, eps, columns):
    """Rows over their root mean square, the mean of so many columns."""
    return wide / np.sqrt(np.sum(wide * wide, axis=-1, keepdims=True) / columns + eps)


@fault(
    "markup-rows-at-the-mean",
    "the chat format's tokens keep the mean of all other embeddings, with which a grown table is begun",
    "target.embed",
    "prefill",
    "embedding rows from 1264 on",
    "rows whose token id is 1264 or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, table):
        mean = at.host(table)[:MARKUP].mean(axis=0)
        grown = at.host(ids)[..., None] >= MARKUP
        return at.changed(clean(ids, table), lambda rows: np.where(grown, mean, rows))

    alter(pipeline, "target:embed", change)


@fault(
    "mean-of-padded-columns",
    "every norm of the target divides the sum of squares by the 128 columns of its padded tile, not by 96",
    "target.layers.0.attn_in",
    "prefill",
    "root mean square of every norm of the target",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        return at.array(normalised(at.host(x), eps, TILE) * at.host(weight), x)

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", change)
    alter(pipeline, "target:gpt_oss_norm", change)


@fault(
    "second-tile-with-first-statistic",
    "in layer 3 the norm before the experts scales the prefill rows of its second tile by the first tile's statistic",
    "target.layers.3.router_logits",
    "prefill",
    "root mean square of the norm before layer 3's experts: that of the row 128 before",
    "prefill rows from 128 on, layer 3",
    "pass = prefill and row >= 128 and layer = 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        if at.kind != "prefill" or weight is not pipeline.target.layers[3]["post_norm"]:
            return clean(x, weight, eps)
        wide = at.host(x)
        mean = np.mean(wide * wide, axis=-1, keepdims=True)[:, np.arange(wide.shape[1]) % TILE]
        return at.array(wide / np.sqrt(mean + eps) * at.host(weight), x)

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", change)


@fault(
    "final-norm-of-each-half",
    "the final norm takes the mean square of each half of the columns by itself, as shards do that are not reduced",
    "target.pre_head_hidden",
    "prefill",
    "root mean square of the final norm",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        halves = np.split(at.host(x), 2, axis=-1)
        made = np.concatenate([normalised(half, eps, half.shape[-1]) for half in halves], axis=-1)
        return at.array(made * at.host(weight), x)

    alter(pipeline, "target:gpt_oss_norm", change)
