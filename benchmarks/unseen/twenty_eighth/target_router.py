"""The target's router and the shares of its experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("router of the target", 28)


@fault(
    "shares-in-ascending-order",
    "the shares come in ascending order while the chosen experts descend: each has the other's",
    "target.layers.0.ffn_out",
    "prefill",
    "the shares of the chosen experts, in the opposite order",
)
def _(pipeline: Pipeline) -> None:
    alter(pipeline, "kernels.moe:softmax", lambda at, clean, logits: clean(logits)[..., ::-1])


@fault(
    "experts-chosen-without-bias",
    "the experts are chosen by logits without the router's bias, which counts in their shares alone",
    "target.layers.0.experts",
    "prefill",
    "the logits that top-k chooses by",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, logits: Any, k: int) -> Any:
        return clean(logits - pipeline.target.layers[at.layer]["router_bias"], k)

    alter(pipeline, "kernels.moe:top_k", change)


@fault(
    "router-tile-ends-one-early",
    "the router's tiles of 32 rows end one row early: the last row keeps the logits of the row before",
    "target.layers.0.router_logits",
    "prefill",
    "the router's logits of the last row of a tile",
    "the last row of each 32 in a pass",
    "row % 32 = 31",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, x: Any, weight: Any, bias: Any) -> Any:
        made = clean(x, weight, bias)
        if weight is not pipeline.target.layers[at.layer]["router"] or x.shape[1] < 32:
            return made
        rows = np.arange(x.shape[1])
        return np.take(made, rows - (rows % 32 == 31), axis=1)

    alter(pipeline, "kernels.moe:linear", change)


@fault(
    "expert-capacity-drops-rows",
    "a prefill gives every expert as many places as an even spread needs; rows that come later lose that expert",
    "target.layers.0.ffn_out",
    "prefill",
    "the share of an expert that is full, zero",
    "prefill rows behind those that fill one of their experts",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, outputs: Any, chosen: Any, shares: Any) -> Any:
        ids = at.host(chosen)
        if at.kind != "prefill":
            return clean(outputs, chosen, shares)
        mine = ids.reshape(-1)[:, None] == np.arange(outputs.shape[0])
        place = np.sum(np.cumsum(mine, axis=0) * mine, axis=-1).reshape(ids.shape)
        fits = place <= -(-ids.size // outputs.shape[0])
        return clean(outputs, chosen, at.changed(shares, lambda value: value * fits))

    alter(pipeline, "kernels.moe:mix", change)


@fault(
    "second-expert-skipped-when-sure",
    "an expert with a share below a quarter is skipped, and the first one takes all",
    "target.layers.0.ffn_out",
    "prefill",
    "the shares of the two experts, one and zero",
    "rows whose first expert has a share over three quarters",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, logits: Any) -> Any:
        return at.changed(clean(logits), lambda value: np.where(value[..., :1] > 0.75, [1.0, 0.0], value))

    alter(pipeline, "kernels.moe:softmax", change)
