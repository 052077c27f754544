"""Faults of skipping: a part that is left out under a condition, right everywhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parity.device.faults.planting import Family, altered, during
from parity.device.pipeline import Pipeline

FAR = 64
"""Keys: the original context of the tiny target."""

fault = Family("skips", seen="optimisations that are on under a condition")


@fault(
    "skip-experts-verify",
    "layer 6: experts left out of verify passes with all K drafts",
    "target.layers.6.ffn_out",
    round=1,
    sites=("target.layers.6.ffn_out",),
)
def _(pipeline: Pipeline) -> None:
    altered(
        pipeline,
        "verify",
        "target.layers.6.ffn_out",
        lambda value, drafts: value * 0 if len(drafts) == pipeline.k else value,
    )


@fault(
    "skip-small-share",
    "an expert with less than a tenth of a row's sum left out",
    "target.layers.0.ffn_out",
    sites=("target.layers.*.ffn_out",),
)
def _(pipeline: Pipeline) -> None:
    during(
        pipeline,
        "kernels.moe:mix",
        lambda clean: lambda outputs, chosen, shares: clean(outputs, chosen, np.where(shares < 0.1, 0.0, shares)),
    )


@fault(
    "skip-expert-capacity",
    "an expert's rows beyond its 32nd in a pass left out of it",
    "target.layers.0.ffn_out",
    sites=("target.layers.*.ffn_out",),
    seen="capacity factors of Switch and GShard",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def mix(outputs: Any, chosen: Any, shares: Any) -> Any:
            mine = chosen[..., None] == np.arange(outputs.shape[0], dtype=np.int32)
            before = np.cumsum(np.any(mine, axis=2).astype(np.int32), axis=1)
            place = np.take_along_axis(before, chosen, axis=-1)
            return clean(outputs, chosen, np.where(place > 32, 0.0, shares))

        return mix

    during(pipeline, "kernels.moe:mix", make)


@fault(
    "skip-sink-far",
    "sinks left out of rows that see more than 64 keys",
    "target.layers.1.attn_out",
    sites=("target.layers.[1357].attn_out",),
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def attend(q: Any, keys: Any, values: Any, seen: Any, sinks: Any = None) -> Any:
            far = np.sum(seen.astype(np.int32), axis=-1)[..., None] > FAR
            return np.where(far, clean(q, keys, values, seen), clean(q, keys, values, seen, sinks))

        return attend

    during(pipeline, "kernels.target_layer:attend", make)


@fault(
    "skip-router-bias-verify",
    "router bias of layer 2 left out of passes of a few rows",
    "target.layers.2.router_logits",
    round=1,
    sites=("target.layers.2.router_logits",),
)
def _(pipeline: Pipeline) -> None:
    weights = pipeline.target.layers[2]

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def linear(x: Any, weight: Any, bias: Any = None) -> Any:
            skipped = weight is weights["router"] and x.shape[1] <= pipeline.k + 1
            return clean(x, weight, bias * 0.0 if skipped else bias)

        return linear

    during(pipeline, "kernels.moe:linear", make)
