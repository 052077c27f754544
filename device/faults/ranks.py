"""Faults of tensor parallelism: the collectives, the ranks' choices and caches."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

from parity.device.engines import with_ranks
from parity.device.faults.planting import Family, during, instead
from parity.device.kernels.collectives import all_gather, all_reduce
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
Parts = list[np.ndarray]
reduced = Family("ranks: reduction", tp=2, sites=("target.layers.*.attn_out",))
choice = Family("ranks: choice", tp=2)
cached = Family("ranks: caches", tp=2, round=1, sites=("kv.drafter.*", "drafter.layers.*.attn_out"), same_text=True)


@reduced(
    "tp-attn-not-reduced",
    "the output projection's partial sums are not added over the ranks",
    ATTENTION,
    compiled=True,
    seen="class of TTrace's shard faults",
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, PROJECTED, _reducing(lambda x: x))


@reduced(
    "tp-ffn-not-reduced",
    "the experts' partial sums are not added over the ranks",
    EXPERTS,
    sites=("target.layers.*.ffn_out",),
    compiled=True,
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
    compiled=True,
    seen="class of TTrace's shard faults",
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, DRAFTED, _reducing(lambda x: x))


@reduced(
    "tp-attn-averaged",
    "the ranks' partial sums averaged, not added",
    ATTENTION,
    compiled=True,
    seen="collectives with another default",
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, PROJECTED, _reducing(lambda x: all_reduce(x) * (1 / _ranks(pipeline))))


@reduced(
    "tp-attn-stale",
    "rank 1's partial sum is that of the layer before: the reduction does not wait for it",
    ATTENTION,
    seen="class of missing barriers",
)
def _(pipeline: Pipeline) -> None:
    last: Parts = []

    def late(parts: Parts) -> Parts:
        fresh, before = parts[1], last[0] if last and last[0].shape == parts[1].shape else 0 * parts[1]
        last[:] = [fresh]
        return [parts[0] + before] * len(parts)

    during(pipeline, PROJECTED, _reducing(_on_hosts(pipeline, late)))


@reduced(
    "tp-ffn-reduced-float8",
    "the experts' partial sums travel in float8",
    EXPERTS,
    sites=("target.layers.*.ffn_out",),
    seen="a quantised all-reduce nobody asked for",
)
def _(pipeline: Pipeline) -> None:
    coarse = _on_hosts(
        pipeline, lambda parts: [one.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) for one in parts]
    )
    during(pipeline, MIXED, lambda clean: lambda x: clean(coarse(x)))


@reduced(
    "tp-ffn-reduced-bfloat16",
    "the experts' partial sums travel in bfloat16",
    EXPERTS,
    sites=("target.layers.*.ffn_out",),
    precision="float32",
    same_text=True,
    compiled=True,
    seen="collectives in the activations' dtype",
)
def _(pipeline: Pipeline) -> None:
    def narrow(x: Any) -> Any:
        return all_reduce(x.astype(ml_dtypes.bfloat16)).astype(np.float32)

    during(pipeline, MIXED, lambda clean: narrow)


@reduced(
    "tp-attn-reduced-in-pairs",
    "the all-reduce joins ranks in pairs, not all four: replica groups of another mesh",
    ATTENTION,
    tp=4,
    compiled=True,
    seen="class of replica groups left over from another mesh",
)
def _(pipeline: Pipeline) -> None:
    pairs = tuple((rank, rank + 1) for rank in range(0, _ranks(pipeline), 2))
    during(pipeline, PROJECTED, _reducing(lambda x: all_reduce(x, pairs)))


@reduced(
    "tp-ffn-reduced-twice",
    "the experts' sum, which every rank has, goes through a second all-reduce",
    EXPERTS,
    sites=("target.layers.*.ffn_out",),
    compiled=True,
    seen="class of TTrace's shard faults",
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, MIXED, lambda clean: lambda x: clean(clean(x)))


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
    def own_first(parts: Parts) -> Parts:
        turned = [parts[rank:] + parts[:rank] for rank in range(len(parts))]
        return [reduce(lambda total, part: total + part, one) for one in turned]

    during(pipeline, PROJECTED, _reducing(_on_hosts(pipeline, own_first)))


@choice(
    "tp-argmax-no-offset",
    "the winning rank's id lacks the ids of the ranks before it",
    TOKENS[0],
    sites=TOKENS,
    compiled=True,
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
    compiled=True,
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
    first = _on_hosts(pipeline, lambda parts: [np.argmax(parts[0], axis=-1)] * len(parts))
    during(pipeline, "target:greedy", lambda clean: first)


@choice(
    "tp-gather-reversed",
    "what the ranks chose is gathered with the last rank first: the ids are offset by another rank's place",
    TOKENS[0],
    sites=(*TOKENS, "drafter.draft_tokens"),
    compiled=True,
    seen="class of gathers in the order of arrival",
)
def _(pipeline: Pipeline) -> None:
    backwards = (tuple(range(_ranks(pipeline)))[::-1],)
    during(pipeline, "kernels.head:all_gather", lambda clean: lambda x, axis: clean(x, axis, backwards))


@choice(
    "tp-argmax-last-wins",
    "the last rank of a tie wins, not the first",
    gate="decisions",
    round=None,
    seen="lattice #280",
)
def _(pipeline: Pipeline) -> None:
    last = _ranks(pipeline) - 1
    backwards = _on_hosts(pipeline, lambda parts: parts[::-1])

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def greedy(logits: Any) -> Any:
            width = logits.shape[-1]
            own = _on_hosts(pipeline, lambda ids: [one % width + (last - one // width) * width for one in ids])
            return own(clean(backwards(logits)))

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


def _ranks(pipeline: Pipeline) -> int:
    sharding = with_ranks(pipeline.target.engine).sharding
    return sharding.ranks if sharding else 1


def _on_hosts(pipeline: Pipeline, change: Callable[[Parts], Parts]) -> Callable[[Any], Any]:
    """An array of which each rank holds what `change` makes of all the ranks' parts."""
    machine = with_ranks(pipeline.target.engine)
    return lambda x: machine.shard(change(machine.hosts(x)), x.dtype)


def _within_shard(clean: Callable[..., Any]) -> Callable[..., Any]:
    """The greedy id without those of the ranks before the winner's."""

    def greedy(logits: Any) -> Any:
        winner = np.argmax(all_gather(np.max(logits, axis=-1, keepdims=True), -1), axis=-1)
        return clean(logits) - winner * logits.shape[-1]

    return greedy


def _behind(model: Model) -> None:
    """Rank 1 clears the last row that the others keep."""

    machine = with_ranks(model.engine)

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def rollback(length: int) -> None:
            clean(length)
            model.caches = [(shorter(keys, length), shorter(values, length)) for keys, values in model.caches]

        return rollback

    def shorter(cache: Any, length: int) -> Any:
        parts = [part.copy() for part in machine.hosts(cache)]
        parts[1][:, length - 1 :] = 0
        return machine.shard(parts, cache.dtype)

    instead(model, "rollback", make)
