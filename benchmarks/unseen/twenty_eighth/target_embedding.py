"""Embeddings and norms of the target."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("embeddings and norms of the target", 28)


@fault(
    "embed-times-root-hidden",
    "the embeddings are multiplied by the root of the hidden size, as another family's port does",
    "target.embed",
    "prefill",
    "a factor of sqrt(H) on the target's embeddings",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, ids: Any, table: Any) -> Any:
        return at.changed(clean(ids, table), lambda value: value * value.shape[-1] ** 0.5)

    alter(pipeline, "target:embed", change)


@fault(
    "embed-last-shard-starts-one-late",
    "the last shard of the embedding table begins one row late: its ids take the row before their own",
    "target.embed",
    "prefill",
    "rows of the embedding table for ids of 1024 and more",
    "the row's token id is 1024 or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, ids: Any, table: Any) -> Any:
        held = at.host(ids)
        return clean(at.array(held - (held >= 1024), ids), table)

    alter(pipeline, "target:embed", change)


@fault(
    "norm-post-from-input",
    "layer 3's post-attention norm is loaded from the name of its input norm",
    "target.layers.3.router_logits",
    "prefill",
    "the weight of layer 3's norm before the router and the experts",
)
def _(pipeline: Pipeline) -> None:
    weights = pipeline.target.layers[3]
    weights["post_norm"] = weights["input_norm"]


@fault(
    "final-norm-mean-of-first-tile",
    "the final norm's mean square is reduced over the first tile of 64 columns alone",
    "target.pre_head_hidden",
    "prefill",
    "the mean square in the final norm, of 64 of the 96 columns",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, x: Any, weight: Any, eps: float) -> Any:
        def normed(value: np.ndarray) -> np.ndarray:
            square = np.mean(np.square(value[..., :64]), axis=-1, keepdims=True)
            return value / np.sqrt(square + eps) * at.host(weight)

        return at.changed(x, normed)

    alter(pipeline, "target:gpt_oss_norm", change)


@fault(
    "input-norm-statistics-of-first-tile",
    "the input norm keeps the mean squares of the first tile of 128 rows and uses them for the rows of the next",
    "target.layers.0.attn_in",
    "prefill",
    "the mean square in the input norms, another row's",
    "rows from 128 on of their pass",
    "row >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, x: Any, weight: Any, eps: float) -> Any:
        if weight is not pipeline.target.layers[at.layer]["input_norm"] or x.shape[1] <= 128:
            return clean(x, weight, eps)

        def normed(value: np.ndarray) -> np.ndarray:
            square = np.mean(np.square(value), axis=-1, keepdims=True)
            square = square[:, np.arange(value.shape[1]) % 128]
            return value / np.sqrt(square + eps) * at.host(weight)

        return at.changed(x, normed)

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", change)
