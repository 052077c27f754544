"""Faults of attention, target and drafter."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from parity.device.faults.planting import EITHER, Family, during, edit, every
from parity.device.pipeline import Pipeline

OUT, OUTS = "target.layers.0.attn_out", ("target.layers.*.attn_out",)
DRAFT, DRAFTED = "drafter.layers.0.attn_out", ("drafter.layers.*.attn_out",)
TARGET, DRAFTER = "kernels.target_layer:attend", "kernels.drafter_layer:attend"
fault = Family("attention", sites=OUTS)
drafter = Family("attention", sites=DRAFTED, same_text=True, drafters=EITHER)


@fault("attn-sinks-missing", "sinks never wired", OUT, seen="vllm-metal #550")
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "sinks", lambda sinks: np.full_like(sinks, -1e30), every(pipeline.target))


@fault(
    "attn-sinks-missing-once",
    "layer 5: sinks not wired",
    "target.layers.5.attn_out",
    sites=("target.layers.5.attn_out",),
    seen="class of vllm-metal #550",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "sinks", lambda sinks: np.full_like(sinks, -1e30), [5])


@fault(
    "attn-sinks-scaled",
    "sink logits scaled by 1 / sqrt(D) with the scores",
    OUT,
    seen="ports that append sinks too early",
)
def _(pipeline: Pipeline) -> None:
    dim = pipeline.target.config.attention.head_dim
    edit(pipeline.target, "sinks", lambda sinks: sinks * dim**-0.5, every(pipeline.target))


@fault("attn-sinks-permuted", "sinks in another order of heads than the queries", OUT, seen="class of TP head shards")
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "sinks", lambda sinks: np.roll(sinks, 1), every(pipeline.target))


@fault("attn-scale-missing", "scores not divided by sqrt(D)", OUT, seen="kernels that expect scaled queries")
def _(pipeline: Pipeline) -> None:
    during(pipeline, TARGET, _scaled)


@fault(
    "attn-qkv-bias-dropped",
    "biases of q, k and v not loaded",
    "target.layers.0.q",
    sites=("target.layers.*.[qkv]",),
    seen="class of SpecForge's attention_bias",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "q_bias k_bias v_bias", np.zeros_like, every(pipeline.target))


@fault(
    "attn-o-bias-dropped",
    "layer 3: output bias missing",
    "target.layers.3.attn_out",
    sites=("target.layers.3.attn_out",),
    seen="class of mirage #722",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "o_bias", np.zeros_like, [3])


@fault("attn-gqa-layout", "query head h reads kv head h mod G, not h div (N / G)", OUT, seen="class of NeMo-RL #2802")
def _(pipeline: Pipeline) -> None:
    during(pipeline, TARGET, _regrouped)


@fault(
    "attn-softmax-bf16-sum",
    "softmax weights added one by one in bfloat16",
    OUT,
    sites=(*OUTS, *DRAFTED),
    precision="float32",
    seen="eager NumPy on ml_dtypes arrays",
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, "kernels.attention:softmax", _eager)


@fault(
    "attn-cache-fp8",
    "keys and values cached in float8",
    OUT,
    sites=(*OUTS, "kv.target.*"),
    seen="a quantised cache nobody asked for",
)
def _(pipeline: Pipeline) -> None:
    engine = pipeline.target.engine

    def make(clean: Any) -> SimpleNamespace:
        def write(cache: Any, rows: Any, slots: Any) -> None:
            coarse = engine.host(rows).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
            clean.write(cache, engine.array(coarse, rows.dtype), slots)

        return SimpleNamespace(write=write)

    during(pipeline, "kernels.target_layer:cache", make)


@drafter(
    "attn-drafter-gqa-layout", "query head h reads kv head h mod G, not h div (N / G)", DRAFT, seen="NeMo-RL #2802"
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, DRAFTER, _regrouped)


@drafter(
    "attn-drafter-scale-missing", "scores not divided by sqrt(D)", DRAFT, seen="kernels that expect scaled queries"
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, DRAFTER, _scaled)


def _scaled(clean: Callable[..., Any]) -> Callable[..., Any]:
    return lambda q, *rest: clean(q * float(q.shape[-1] ** 0.5), *rest)


def _regrouped(clean: Callable[..., Any]) -> Callable[..., Any]:
    """Heads 0, G, 2G … belong to kv head 0."""

    def attend(q: Any, keys: Any, values: Any, seen: Any, sinks: Any = None) -> Any:
        heads, groups, dim = q.shape[2], keys.shape[2], q.shape[3]
        order = np.arange(heads).reshape(-1, groups).T.reshape(-1)
        mixed = clean(q[:, :, order], keys, values, seen, None if sinks is None else sinks[order])
        split = mixed.reshape(*q.shape[:2], heads, dim)
        return split[:, :, np.argsort(order)].reshape(*q.shape[:2], heads * dim)

    return attend


def _eager(clean: Callable[..., Any]) -> Callable[..., Any]:
    """The sum of eager NumPy on ml_dtypes arrays, over scores and sink."""

    def softmax(x: Any, sink: Any = None) -> Any:
        weights = np.array(clean(x, sink), np.float32)
        total = np.zeros(weights.shape[:-1], np.float32)
        for column in np.moveaxis(weights, -1, 0):
            total = (total + column).astype(ml_dtypes.bfloat16).astype(np.float32)
        exact = weights.sum(-1)
        return type(x)(weights * (exact / np.maximum(total, 1e-30))[..., None], x.dtype)

    return softmax
