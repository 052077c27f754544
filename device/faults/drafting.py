"""Faults inside the drafter: its layers, its head, and the way to target ids. The text stays, acceptance drops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from parity.device.faults.planting import EITHER, PARALLEL, Family, during, edit, every, instead
from parity.device.pipeline import Pipeline

ATTENTION, MLP, HIDDEN = "drafter.layers.0.attn_out", "drafter.layers.0.ffn_out", "drafter.pre_head_hidden"
FIRST = (ATTENTION, "kv.drafter.0.*")
TOKENS, LAYER = "drafter.draft_tokens", "kernels.drafter_layer:"
fault = Family("drafter layers", same_text=True, drafters=EITHER)
d2t = Family("d2t", same_text=True, round=1, drafters=EITHER)


@fault("drafter-concat-order", "fused hidden first, embedding second", ATTENTION, sites=FIRST, seen="ports of EAGLE-3")
def _(pipeline: Pipeline) -> None:
    half = pipeline.drafter.config.hidden
    edit(pipeline.drafter, "q k v", lambda weight: np.roll(weight, half, axis=0), [0])


@fault("drafter-hidden-norm-missing", "hidden_norm not applied", ATTENTION, sites=FIRST, seen="ports of EAGLE-3")
def _(pipeline: Pipeline) -> None:
    _without_norm(pipeline, "hidden_norm")


@fault(
    "drafter-input-norm-missing",
    "the embedding goes into the midlayer un-normed",
    ATTENTION,
    sites=FIRST,
    seen="ports of EAGLE-3",
)
def _(pipeline: Pipeline) -> None:
    _without_norm(pipeline, "input_norm")


@fault(
    "drafter-norms-swapped",
    "hidden_norm and input_layernorm exchanged in the midlayer",
    ATTENTION,
    sites=FIRST,
    seen="ports of EAGLE-3",
)
def _(pipeline: Pipeline) -> None:
    first = pipeline.drafter.layers[0]
    first["hidden_norm"], first["input_norm"] = first["input_norm"], first["hidden_norm"]


@fault(
    "drafter-residual-normed",
    "norm_before_residual taken as the other value",
    MLP,
    sites=(MLP, "drafter.layers.0.out"),
    seen="vLLM's speculators defaults",
)
def _(pipeline: Pipeline) -> None:
    config = pipeline.drafter.config
    pipeline.drafter.config = replace(config, norm_before_residual=not config.norm_before_residual)


@fault(
    "drafter-residual-overwritten",
    "residual overwritten by its norm in layers above 0",
    "drafter.layers.1.ffn_out",
    sites=("drafter.layers.[123].ffn_out", "drafter.layers.[123].out"),
    seen="vLLM #26164",
    drafters=PARALLEL,
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def rest(residual: Any, normed: Any, step: Any, weights: dict[str, Any], *others: Any) -> Any:
            return clean(residual if "hidden_norm" in weights else normed, normed, step, weights, *others)

        return rest

    during(pipeline, LAYER + "_rest", make)


@fault(
    "drafter-post-norm",
    "post-attention norm's weight left at one",
    MLP,
    sites=("drafter.layers.*.ffn_out",),
    seen="class of SGLang #27908",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "post_norm", np.ones_like, every(pipeline.drafter))


@fault(
    "drafter-gate-up-swapped",
    "gate and up projections exchanged",
    MLP,
    sites=("drafter.layers.*.ffn_out",),
    seen="fused gate_up loaders",
)
def _(pipeline: Pipeline) -> None:
    for weights in pipeline.drafter.layers:
        weights["gate"], weights["up"] = weights["up"], weights["gate"]


@fault(
    "drafter-activation",
    "the target's clamped activation in the drafter",
    MLP,
    sites=("drafter.layers.*.ffn_out",),
    seen="drafters that inherit the target's layers",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        from parity.device.kernels.linear import linear
        from parity.device.kernels.moe import clamped_swiglu

        limit, alpha = pipeline.target.config.limit, pipeline.target.config.alpha
        return lambda x, weights: linear(
            clamped_swiglu(linear(x, weights["gate"]), linear(x, weights["up"]), limit, alpha), weights["down"]
        )

    during(pipeline, LAYER + "_mlp", make)


@fault(
    "drafter-eps",
    "norm eps of 1e-2 where 1e-5 is meant",
    ATTENTION,
    sites=("drafter.*", "kv.drafter.0.*"),
    seen="configs whose eps key is not read",
)
def _(pipeline: Pipeline) -> None:
    pipeline.drafter.config = replace(pipeline.drafter.config, eps=1e-2)


@fault(
    "drafter-layer-skipped",
    "the last layer not run",
    "drafter.layers.3.attn_out",
    sites=("drafter.layers.3.*", "kv.drafter.3.*", HIDDEN),
    seen="num_hidden_layers read from another config",
    drafters=PARALLEL,
)
def _(pipeline: Pipeline) -> None:
    last = pipeline.drafter.layers[-1]
    during(
        pipeline,
        "drafter:plain_layer",
        lambda clean: lambda x, step, weights, *rest: x if weights is last else clean(x, step, weights, *rest),
    )


@fault(
    "drafter-final-norm-no-residual",
    "final norm over the last layer's branch, the residual dropped",
    HIDDEN,
    round=1,
    seen="vLLM #14464",
    drafters=PARALLEL,
)
def _(pipeline: Pipeline) -> None:
    branch: list[Any] = []

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def plain_layer(*arguments: Any) -> Any:
            *others, tap = arguments

            def watch(part: str, value: Any) -> Any:
                value = tap(part, value)
                branch[:] = [value] if part == "ffn_out" else branch
                return value

            return clean(*others, watch)

        return plain_layer

    during(pipeline, "drafter:plain_layer", make)
    instead(pipeline.drafter, "choose", lambda clean: lambda x, *rest: clean(branch[0], *rest))


@fault("drafter-no-final-norm", "head applied without the final norm", HIDDEN, round=1, seen="SpecForge #879")
def _(pipeline: Pipeline) -> None:
    during(pipeline, "drafter:llama_norm", lambda clean: lambda x, weight, eps: x)


@fault(
    "drafter-rows-one-late",
    "drafts read one row behind the last committed one",
    HIDDEN,
    round=1,
    seen="class of NKIPy PR 63",
)
def _(pipeline: Pipeline) -> None:
    instead(pipeline.drafter, "choose", lambda clean: lambda x, committed, *rest: clean(x, committed + 1, *rest))


@d2t("d2t-absolute", "d2t taken as an absolute id", TOKENS, seen="verl-SpeCo #67")
def _(pipeline: Pipeline) -> None:
    during(pipeline, "drafter:to_target_ids", lambda clean: lambda ids, offsets: np.take(offsets, ids, axis=0))


@d2t("d2t-missing", "draft ids used as target ids", TOKENS, seen="NeMo Automodel #2447")
def _(pipeline: Pipeline) -> None:
    during(pipeline, "drafter:to_target_ids", lambda clean: lambda ids, offsets: ids)


@d2t("d2t-off-by-one", "target ids one too large", TOKENS, seen="class of verl-SpeCo #67")
def _(pipeline: Pipeline) -> None:
    last = pipeline.target.config.vocab - 1
    during(pipeline, "drafter:to_target_ids", lambda clean: lambda *both: np.minimum(clean(*both) + 1, last))


def _without_norm(pipeline: Pipeline, name: str) -> None:
    left_out = pipeline.drafter.layers[0][name]
    during(
        pipeline,
        LAYER + "llama_norm",
        lambda clean: lambda x, weight, eps: x if weight is left_out else clean(x, weight, eps),
    )
