"""The drafter's layers around their attention: norms, residuals, MLP."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.unseen.moments import Moment, alter, moment
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("layers of the drafter", 28)


@fault(
    "hidden-norm-has-embedding-rms",
    "The first layer's two norms share one buffer for the root mean square: the hidden is divided by the embedding's.",
    "drafter.layers.0.attn_out",
    "prefill",
    "the hidden norm of the first layer divides by the root mean square of the row's embedding",
)
def _(pipeline: Pipeline) -> None:
    held: dict[str, np.ndarray] = {}

    def layer(at: Moment, clean: Any, embedded: Any, *rest: Any) -> Any:
        held["embedded"] = at.host(embedded)
        return clean(embedded, *rest)

    def norm(at: Moment, clean: Any, x: Any, weight: Any, eps: float) -> Any:
        if weight is not pipeline.drafter.layers[0].get("hidden_norm"):
            return clean(x, weight, eps)
        square = np.mean(np.square(held["embedded"]), axis=-1, keepdims=True)
        return at.changed(x, lambda value: value / np.sqrt(square + eps)) * weight

    alter(pipeline, "drafter:midlayer", layer)
    alter(pipeline, "kernels.drafter_layer:llama_norm", norm)


@fault(
    "residual-without-attention",
    "The last layer's second residual is the stream that entered it: the attention branch reaches the MLP alone.",
    "drafter.layers.3.out",
    "prefill",
    "the output of layer 3 lacks its attention branch",
)
def _(pipeline: Pipeline) -> None:
    def rest(at: Moment, clean: Any, residual: Any, *given: Any) -> Any:
        *before, tap = given
        held: dict[str, Any] = {}

        def shown(part: str, value: Any) -> Any:
            held[part] = tap(part, residual + held["ffn_out"] if part == "out" else value)
            return held[part]

        return clean(residual, *before, shown if at.layer == 3 else tap)

    alter(pipeline, "kernels.drafter_layer:_rest", rest)


@fault(
    "residual-of-tile-before",
    "The fused add of layer 2 walks a prompt in tiles of 64 rows with the residual's pointer one tile behind.",
    "drafter.layers.2.ffn_out",
    "prefill",
    "the residual that layer 2 adds its attention to is that of 64 rows before",
    "rows from the 64th on of a prefill",
    "pass = prefill and row >= 64",
)
def _(pipeline: Pipeline) -> None:
    def behind(value: np.ndarray) -> np.ndarray:
        return np.concatenate([value[:, :64], value[:, :-64]], axis=1)

    def rest(at: Moment, clean: Any, residual: Any, *given: Any) -> Any:
        if at.kind == "prefill" and at.layer == 2 and residual.shape[1] > 64:
            residual = at.changed(residual, behind)
        return clean(residual, *given)

    alter(pipeline, "kernels.drafter_layer:_rest", rest)


@fault(
    "down-tail-dropped",
    "The down projection sums whole tiles of 64 rows: the last 32 of 224 intermediate columns are left out.",
    "drafter.layers.0.ffn_out",
    "prefill",
    "intermediate columns 192 to 223 of every MLP are dropped",
)
def _(pipeline: Pipeline) -> None:
    def change(down: np.ndarray) -> np.ndarray:
        down[192:] = 0
        return down

    for weights in pipeline.drafter.layers:
        rewritten(pipeline, weights, "down", change)


@fault(
    "up-begins-in-gate",
    "The fused weight of layer 3 holds gate and up side by side, and up is cut out of it 32 columns too early.",
    "drafter.layers.3.ffn_out",
    "prefill",
    "up of layer 3 is the last 32 columns of gate and the first 192 of up",
)
def _(pipeline: Pipeline) -> None:
    weights = pipeline.drafter.layers[3]
    gate = moment(pipeline).host(weights["gate"])
    rewritten(pipeline, weights, "up", lambda up: np.concatenate([gate[:, 192:], up[:, :192]], axis=1))
