"""Faults of tensor parallelism: weights cut in the wrong way, or given to the wrong rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from parity.device.engines import with_ranks
from parity.device.faults.planting import Family, every
from parity.device.model import Model
from parity.device.pipeline import Pipeline

ATTENTION, EXPERTS = "target.layers.0.attn_out", "target.layers.0.ffn_out"
Parts = list[np.ndarray]
fault = Family("ranks: shards", tp=2, sites=("target.layers.*.attn_out",))


@fault(
    "attn-o-bias-per-rank",
    "output bias added once per rank before the all-reduce",
    ATTENTION,
    seen="class of mirage #722",
)
def _(pipeline: Pipeline) -> None:
    _reshard(pipeline.target, "o_bias", lambda parts: parts[:1] * len(parts))


@fault(
    "ffn-down-bias-per-rank",
    "down bias added once per rank before the all-reduce",
    EXPERTS,
    sites=("target.layers.*.ffn_out",),
    seen="class of mirage #722",
)
def _(pipeline: Pipeline) -> None:
    _reshard(pipeline.target, "down_bias", lambda parts: parts[:1] * len(parts))


@fault(
    "tp-q-heads-strided",
    "query heads dealt out in turn, the output projection's rows in runs",
    "target.layers.0.q",
    sites=("target.layers.*.q",),
    seen="class of NeMo-RL #2802",
)
def _(pipeline: Pipeline) -> None:
    dim = pipeline.target.config.attention.head_dim

    def deal(parts: Parts) -> Parts:
        whole = np.concatenate(parts, axis=-1)
        heads = whole.reshape(*whole.shape[:-1], -1, dim)
        dealt = [heads[..., rank :: len(parts), :] for rank in range(len(parts))]
        return [one.reshape(*whole.shape[:-1], -1) for one in dealt]

    _reshard(pipeline.target, "q q_bias", deal)


@fault(
    "tp-kv-heads-first",
    "every rank holds the first rank's kv heads",
    "target.layers.0.k",
    sites=("target.layers.*.[kv]",),
    seen="class of kv heads replicated although they are shared out",
)
def _(pipeline: Pipeline) -> None:
    _reshard(pipeline.target, "k k_bias v v_bias", lambda parts: parts[:1] * len(parts))


@fault(
    "tp-drafter-kv-exchanged",
    "the drafter's kv heads lie on the other rank than their queries",
    "drafter.layers.0.attn_out",
    sites=("drafter.layers.*.attn_out", "kv.drafter.*.[kv]"),
    same_text=True,
    seen="class of NeMo-RL #2802",
)
def _(pipeline: Pipeline) -> None:
    _reshard(pipeline.drafter, "k v", lambda parts: parts[::-1])


@fault(
    "tp-o-rows-exchanged",
    "ranks hold each other's rows of the output projection",
    ATTENTION,
    seen="class of TTrace's shard faults",
)
def _(pipeline: Pipeline) -> None:
    _reshard(pipeline.target, "o", lambda parts: parts[::-1])


@fault(
    "tp-sinks-first",
    "sinks not shared out: every rank takes the first rank's",
    ATTENTION,
    seen="class of vllm-metal #550",
)
def _(pipeline: Pipeline) -> None:
    _reshard(pipeline.target, "sinks", lambda parts: parts[:1] * len(parts))


@fault(
    "tp-gate-up-run",
    "the fused gate and up projection shared out as one run: a rank gets columns of one of them only",
    EXPERTS,
    sites=("target.layers.*.ffn_out",),
    seen="loaders of fused gate_up projections",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target
    ranks = len(with_ranks(target.engine).hosts(target.outer["norm"]))
    for weights in target.layers:
        for part in ("", "_bias"):
            pair = [
                np.concatenate(with_ranks(target.engine).hosts(weights[name + part]), axis=-1)
                for name in ("gate", "up")
            ]
            runs = np.split(np.concatenate(pair, axis=-1), ranks, axis=-1)
            for name, half in zip(
                ("gate", "up"), zip(*(np.split(run, 2, axis=-1) for run in runs), strict=True), strict=True
            ):
                weights[name + part] = with_ranks(target.engine).shard(
                    [np.ascontiguousarray(one) for one in half], target.dtype
                )


@fault(
    "tp-down-rows-exchanged",
    "ranks hold each other's rows of the experts' down projection",
    EXPERTS,
    sites=("target.layers.*.ffn_out",),
    seen="class of TTrace's shard faults",
)
def _(pipeline: Pipeline) -> None:
    _reshard(pipeline.target, "down", lambda parts: parts[::-1])


@fault(
    "tp-head-exchanged",
    "ranks hold each other's columns of the head",
    "target.logits",
    sites=("target.logits", "verify.logits"),
    seen="class of TTrace's shard faults",
)
def _(pipeline: Pipeline) -> None:
    outer, engine = pipeline.target.outer, pipeline.target.engine
    outer["head"] = with_ranks(engine).shard(with_ranks(engine).hosts(outer["head"])[::-1], pipeline.target.dtype)


def _reshard(model: Model, names: str, change: Callable[[Parts], Parts]) -> None:
    """Replace weights of these space-separated names in every layer by `change(each rank's part)`."""
    for layer in every(model):
        weights = model.layers[layer]
        for name in names.split():
            parts = change(with_ranks(model.engine).hosts(weights[name]))
            weights[name] = with_ranks(model.engine).shard([np.ascontiguousarray(part) for part in parts], model.dtype)
