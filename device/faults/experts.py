"""Faults of the mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from parity.device.faults.planting import Family, during, edit, every
from parity.device.pipeline import Pipeline

OUT, LAYER, PORTS = "target.layers.0.ffn_out", "kernels.moe:", "ports of gpt-oss"
fault = Family("experts", sites=("target.layers.*.ffn_out",), seen=PORTS)


@fault(
    "ffn-router-bias", "router bias dropped", "target.layers.0.router_logits", sites=("target.layers.*.router_logits",)
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "router_bias", np.zeros_like, every(pipeline.target))


@fault("ffn-softmax-before-topk", "softmax over all experts, then top-k", OUT)
def _(pipeline: Pipeline) -> None:
    scores: list[Any] = []

    def remember(clean: Callable[..., Any]) -> Callable[..., Any]:
        def top_k(logits: Any, k: int) -> Any:
            scores[:] = [logits.astype(np.float32)]
            return clean(logits, k)

        return top_k

    def shares(taken: Any) -> Any:
        top = np.max(scores[0], axis=-1, keepdims=True)
        return np.exp(taken - top) / np.sum(np.exp(scores[0] - top), axis=-1, keepdims=True)

    during(pipeline, LAYER + "top_k", remember)
    during(pipeline, LAYER + "softmax", lambda clean: shares)


@fault("ffn-shares-sigmoid", "expert shares by sigmoid instead of softmax", OUT)
def _(pipeline: Pipeline) -> None:
    during(pipeline, LAYER + "softmax", lambda clean: lambda taken: 1.0 / (1.0 + np.exp(-taken)))


@fault("ffn-shares-equal", "chosen experts averaged, their shares ignored", OUT)
def _(pipeline: Pipeline) -> None:
    during(pipeline, LAYER + "softmax", lambda clean: lambda taken: clean(taken * 0.0))


@fault(
    "ffn-topk-one-more",
    "one expert a token more than the config says",
    "target.layers.0.experts",
    sites=("target.layers.*.experts", "target.layers.*.ffn_out"),
)
def _(pipeline: Pipeline) -> None:
    _config(pipeline, experts_per_token=pipeline.target.config.experts_per_token + 1)


@fault(
    "ffn-topk-lowest",
    "the least of the experts chosen where the second best is meant",
    "target.layers.0.experts",
    sites=("target.layers.*.experts",),
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        return lambda logits, k: np.concatenate([clean(logits, k - 1), clean(logits * -1.0, 1)], axis=-1)

    during(pipeline, LAYER + "top_k", make)


@fault("ffn-clamp-missing", "swiglu limit not passed", OUT, seen="transformers #40197")
def _(pipeline: Pipeline) -> None:
    _config(pipeline, limit=1e9)


@fault("ffn-alpha-one", "sigmoid(gate) where sigmoid(1.702 gate) is meant", OUT)
def _(pipeline: Pipeline) -> None:
    _config(pipeline, alpha=1.0)


@fault("ffn-up-plus-one", "up instead of up + 1", OUT)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        return lambda gate, up, limit, alpha: clean(gate, up, limit, alpha) - clean(gate, up * 0.0, limit, alpha)

    during(pipeline, LAYER + "clamped_swiglu", make)


@fault("ffn-bias-after-shares", "down bias added after the routing shares multiplied", OUT)
def _(pipeline: Pipeline) -> None:
    bias: list[Any] = []

    def bare(clean: Callable[..., Any]) -> Callable[..., Any]:
        def experts(x: Any, weights: dict[str, Any], config: Any) -> Any:
            bias[:] = [weights["down_bias"].astype(np.float32)]
            return clean(x, weights | {"down_bias": weights["down_bias"] * 0.0}, config)

        return experts

    def late(clean: Callable[..., Any]) -> Callable[..., Any]:
        return lambda outputs, chosen, shares: (
            clean(outputs, chosen, shares) + np.sum(np.take(bias[0], chosen, axis=0), axis=2)
        )

    during(pipeline, LAYER + "experts", bare)
    during(pipeline, LAYER + "mix", late)


@fault("ffn-down-bias-dropped", "down bias not loaded", OUT)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "down_bias", np.zeros_like, every(pipeline.target))


@fault("ffn-shard-swapped", "two ranks' expert shards exchanged", OUT, seen="class of TTrace's shard faults")
def _(pipeline: Pipeline) -> None:
    half = pipeline.target.config.experts // 2
    during(
        pipeline,
        LAYER + "mix",
        lambda clean: lambda outputs, *rest: clean(np.concatenate([outputs[half:], outputs[:half]], axis=0), *rest),
    )


@fault("ffn-shard-not-reduced", "experts of the second rank not in the sum", OUT, seen="class of TTrace's shard faults")
def _(pipeline: Pipeline) -> None:
    half = pipeline.target.config.experts // 2
    during(
        pipeline,
        LAYER + "mix",
        lambda clean: (
            lambda outputs, *rest: clean(np.concatenate([outputs[:half], outputs[half:] * 0.0], axis=0), *rest)
        ),
    )


@fault(
    "ffn-norm-weight",
    "the experts' norm takes the weight of the attention's",
    "target.layers.0.router_logits",
    sites=("target.layers.*.router_logits", "target.layers.*.ffn_out"),
)
def _(pipeline: Pipeline) -> None:
    for weights in pipeline.target.layers:
        weights["post_norm"] = weights["input_norm"]


@fault(
    "ffn-residual-missing",
    "layer 4: attention's output not added before the experts' norm",
    "target.layers.4.router_logits",
    sites=("target.layers.4.router_logits", "target.layers.4.ffn_out"),
    seen="class of vLLM #26164",
)
def _(pipeline: Pipeline) -> None:
    streams: list[Any] = []

    def remember(clean: Callable[..., Any]) -> Callable[..., Any]:
        def target_layer(x: Any, step: Any, weights: Any, *rest: Any) -> Any:
            streams[:] = [x, weights["post_norm"] if weights is pipeline.target.layers[4] else None]
            return clean(x, step, weights, *rest)

        return target_layer

    during(pipeline, "target:target_layer", remember)
    during(
        pipeline,
        "kernels.target_layer:gpt_oss_norm",
        lambda clean: lambda x, weight, eps: clean(streams[0] if weight is streams[1] else x, weight, eps),
    )


def _config(pipeline: Pipeline, **fields: Any) -> None:
    pipeline.target.config = replace(pipeline.target.config, **fields)
