"""Faults of tensor parallelism: the collectives, the ranks' choices and caches."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

from parity.device.engines import with_ranks
from parity.device.engines.ranks import Ranks
from parity.device.faults.planting import Family, during, instead
from parity.device.kernels.collectives import all_reduce
from parity.device.kernels.linear import wide_linear
from parity.device.model import Model
from parity.device.pipeline import Pipeline

ATTENTION, EXPERTS = "target.layers.0.attn_out", "target.layers.0.ffn_out"
PROJECTED, MIXED, DRAFTED = (
    "kernels.target_layer:row_parallel",
    "kernels.moe:all_reduce",
    "kernels.drafter_layer:row_parallel",
)
TOKENS = ("target.tokens", "verify.tokens")
reduced = Family("ranks: reduction", tp=2, sites=("target.layers.*.attn_out",))
choice = Family("ranks: choice", tp=2)
cached = Family("ranks: caches", tp=2, round=1, sites=("kv.drafter.*", "drafter.layers.*.attn_out"), same_text=True)


@reduced(
    "tp-attn-not-reduced",
    "the output projection's partial sums are not added over the ranks",
    ATTENTION,
    seen="class of TTrace's shard faults",
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, PROJECTED, _reducing(lambda x: x))


@reduced(
    "tp-ffn-not-reduced",
    "the experts' partial sums are not added over the ranks",
    EXPERTS,
    sites=("target.layers.*.ffn_out",),
    seen="class of TTrace's shard faults",
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, MIXED, lambda clean: lambda x: x)


@reduced(
    "tp-drafter-not-reduced",
    "the drafter's partial sums are not added over the ranks",
    "drafter.layers.0.attn_out",
    sites=("drafter.layers.*.attn_out", "drafter.layers.*.ffn_out"),
    same_text=True,
    seen="class of TTrace's shard faults",
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, DRAFTED, _reducing(lambda x: x))


@reduced(
    "tp-attn-averaged",
    "the ranks' partial sums averaged, not added",
    ATTENTION,
    seen="collectives with another default",
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, PROJECTED, _reducing(lambda x: all_reduce(x) * (1 / len(x.parts))))


@reduced(
    "tp-attn-stale",
    "rank 1's partial sum is that of the layer before: the reduction does not wait for it",
    ATTENTION,
    seen="class of missing barriers",
)
def _(pipeline: Pipeline) -> None:
    last: list[Any] = []

    def late(x: Any) -> Any:
        fresh, before = x.parts[1], last[0] if last and last[0].shape == x.shape else x.parts[1] * 0.0
        last[:] = [fresh]
        return Ranks([x.parts[0] + before] * len(x.parts))

    during(pipeline, PROJECTED, _reducing(late))


@reduced(
    "tp-ffn-reduced-float8",
    "the experts' partial sums travel in float8",
    EXPERTS,
    sites=("target.layers.*.ffn_out",),
    seen="a quantised all-reduce nobody asked for",
)
def _(pipeline: Pipeline) -> None:
    engine = pipeline.target.engine

    def coarse(x: Any) -> Any:
        return with_ranks(engine).shard(
            [one.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) for one in with_ranks(engine).hosts(x)]
        )

    during(pipeline, MIXED, lambda clean: lambda x: clean(coarse(x)))


@reduced(
    "tp-order-by-rank",
    "every rank adds the partial sums in an order of its own, its own first",
    ATTENTION,
    chained="",
    tp=4,
    precision="float32",
    same_text=True,
    seen="class of all-reduces without a fixed order",
)
def _(pipeline: Pipeline) -> None:
    def own_first(x: Any) -> Any:
        turned = [x.parts[rank:] + x.parts[:rank] for rank in range(len(x.parts))]
        return Ranks([reduce(lambda total, part: total + part, parts) for parts in turned])

    during(pipeline, PROJECTED, _reducing(own_first))


@choice(
    "tp-argmax-no-offset",
    "the winning rank's id lacks the ids of the ranks before it",
    TOKENS[0],
    sites=TOKENS,
    seen="vocabulary-parallel heads",
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, "target:greedy", lambda clean: _within_shard(clean))


@choice(
    "tp-draft-argmax-no-offset",
    "the winning rank's draft id lacks the ids of the ranks before it",
    "drafter.draft_tokens",
    round=None,
    same_text=True,
    seen="vocabulary-parallel heads",
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, "drafter:greedy", lambda clean: _within_shard(clean))


@choice(
    "tp-argmax-first-shard",
    "every rank chooses within its own vocabulary, and the first rank's choice is taken",
    TOKENS[0],
    sites=TOKENS,
    seen="vocabulary-parallel heads",
)
def _(pipeline: Pipeline) -> None:
    during(
        pipeline,
        "target:greedy",
        lambda clean: lambda logits: Ranks([np.argmax(logits.parts[0], axis=-1)] * len(logits.parts)),
    )


@choice(
    "tp-argmax-last-wins",
    "the last rank of a tie wins, not the first",
    gate="decisions",
    round=None,
    seen="lattice #280",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def greedy(logits: Any) -> Any:
            turned, width, last = clean(Ranks(logits.parts[::-1])), logits.shape[-1], len(logits.parts) - 1
            return turned % width + (last - turned // width) * width

        return greedy

    during(pipeline, "target:greedy", make)


@cached(
    "tp-rollback-one-rank",
    "one rank rolls the drafter's cache back a row further than the others",
    "kv.drafter.0.k",
    seen="class of mlxcel #994",
)
def _(pipeline: Pipeline) -> None:
    _behind(pipeline.drafter)


@cached(
    "tp-rollback-target-one-rank",
    "one rank rolls the target's cache back a row further than the others",
    "kv.target.0.k",
    sites=("kv.target.*.[kv]",),
    same_text=False,
    seen="class of mlxcel #994",
)
def _(pipeline: Pipeline) -> None:
    _behind(pipeline.target)


def _reducing(reduced: Callable[..., Any]) -> Callable[..., Any]:
    """A row-parallel projection whose partial sums are added by `reduced`."""
    return lambda clean: lambda x, weight, bias=None: reduced(wide_linear(x, weight, bias)).astype(x.dtype)


def _within_shard(clean: Callable[..., Any]) -> Callable[..., Any]:
    return lambda logits: clean(logits) - clean(logits) // logits.shape[-1] * logits.shape[-1]


def _behind(model: Model) -> None:
    """Rank 1 clears the last row that the others keep."""

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def rollback(length: int) -> None:
            clean(length)
            for cache in (one for pair in model.caches for one in pair):
                cache.parts[1][:, length - 1 :] = np.zeros((), np.float32)

        return rollback

    instead(model, "rollback", make)
