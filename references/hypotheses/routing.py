"""Other routers: other weights, other choices, other experts than the chosen ones, other inputs of either."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from parity.references.hypotheses.catalogue import FACTOR, Family, Mutation
from parity.references.hypotheses.lazily import F, Loop, Tensor, torch
from parity.references.hypotheses.mutating import (
    Layer,
    Layers,
    NotApplicable,
    changed,
    entering,
    leaving,
    mlps,
    target_layers,
    together,
)
from parity.references.points import foreign, replaced

FFN = ("target.layers.*.ffn_out",)
LOGITS = ("target.layers.*.router_logits",)
ROUTE_FIX = "top-k on the raw logits with bias, then softmax over the k values"


def _routing(loop: Loop, value: Layers, change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Mutation:
    """`change(logits, weights, ids)` gives the weights [S, X] of the chosen experts.

    It runs behind the hook that hands over logits and choices, on what that puts back.
    """

    def weighted(output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, weights, ids = output
        return logits, change(logits, weights, ids).to(weights.dtype), ids

    return together(leaving(mlp.router, weighted) for mlp in mlps(loop, value))


routing = Family(_routing, stages=FFN, layered=True, fix=ROUTE_FIX)
routing("ffn-softmax-before-topk", "routing weights: softmax before top-k", seen=("gpt-oss ports",))(
    lambda logits, weights, ids: logits.softmax(-1).gather(1, ids)
)
routing("ffn-weights-sigmoid", "routing weights: sigmoid")(lambda logits, weights, ids: logits.gather(1, ids).sigmoid())
routing("ffn-weights-sigmoid-normalised", "routing weights: sigmoid, normalised")(
    lambda logits, weights, ids: F.normalize(logits.gather(1, ids).sigmoid(), 1, 1)
)
routing("ffn-weights-uniform", "routing weights: uniform")(
    lambda logits, weights, ids: torch.full_like(weights, 1 / weights.shape[1])
)
routing("ffn-weights-missing", "routing weights: one")(lambda logits, weights, ids: torch.ones_like(weights))
routing("ffn-weights-reversed", "routing weights: reversed")(lambda logits, weights, ids: weights.flip(1))
routing("ffn-weights-by-id", "routing weights: in the order of the ids")(
    lambda logits, weights, ids: weights.gather(1, ids.argsort(1).argsort(1))
)
routing("ffn-weights-raw", "routing weights: raw logits")(lambda logits, weights, ids: logits.gather(1, ids))
routing("ffn-last-expert-dropped", "routing weights: last dropped")(
    lambda logits, weights, ids: weights * (torch.arange(weights.shape[1]) < weights.shape[1] - 1)
)
routing("ffn-first-expert-only", "routing weights: first only")(
    lambda logits, weights, ids: (torch.arange(weights.shape[1]) == 0).to(weights).expand_as(weights)
)

router = Family(stages=LOGITS)


@router(
    "ffn-weights-scaled",
    "routing weights are {value:.4g} times what they should be",
    stages=FFN,
    values=(2.0, 0.5),
    fit=FACTOR,
    fix="an all-reduce too many or too few behind the experts",
)
def _(loop: Loop, factor: float) -> Mutation:
    return _routing(loop, "all", lambda logits, weights, ids: weights * factor)


def router_bias(loop: Loop, value: Layers, times: float) -> Mutation:
    """The router's bias so many times."""
    return together(changed(mlp.router.bias, lambda b: b * times) for mlp in mlps(loop, value))


for end, times, says in (("", 0.0, "dropped"), ("-twice", 2.0, "added twice")):
    router(
        f"ffn-router-bias{end}",
        f"the router's bias is {says}",
        layered=True,
        fix="the router is a linear layer with bias",
        seen=("gpt-oss ports",),
    )(partial(router_bias, times=times))

choices = Family(stages=("target.layers.*.experts",))


@choices("ffn-top-k", "{value:+d} experts a token", values=(-1, 1, 2), fix="num_experts_per_tok of the config")
def _(loop: Loop, delta: int) -> Mutation:
    many = loop.target.config.num_experts_per_tok + delta
    if not 1 <= many <= loop.target.config.num_local_experts:
        raise NotApplicable(f"{many} experts a token")
    return together(replaced(mlp.router, "top_k", many) for mlp in mlps(loop))


@choices("ffn-lowest-experts", "the experts with the smallest logits", layered=True, fix=ROUTE_FIX)
def _(loop: Loop, value: Layers) -> Mutation:
    def forward(inner: Callable[..., Any], hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, weights, _ = inner(hidden)
        return logits, weights, logits.topk(weights.shape[1], largest=False).indices

    return together(foreign(mlp.router, "forward").around(forward) for mlp in mlps(loop, value))


def running(loop: Loop, value: Layers, change: Callable[..., Tensor]) -> Mutation:
    """`change(experts, run, hidden, ids, weights)` gives what the experts of these layers make."""
    each = [mlp.experts for mlp in mlps(loop, value)]
    return together(foreign(one, "forward").around(partial(change, one)) for one in each)


numbered = Family(running, stages=FFN, layered=True, fix="the index from chosen expert to weight")
numbered("ffn-expert-next", "chosen experts run with other experts' weights: next")(
    lambda experts, run, hidden, ids, weights: run(hidden, (ids + 1) % experts.num_experts, weights)
)
numbered("ffn-expert-previous", "chosen experts run with other experts' weights: previous")(
    lambda experts, run, hidden, ids, weights: run(hidden, (ids - 1) % experts.num_experts, weights)
)
numbered("ffn-expert-reversed", "chosen experts run with other experts' weights: reversed")(
    lambda experts, run, hidden, ids, weights: run(hidden, experts.num_experts - 1 - ids, weights)
)

shards = Family(
    stages=FFN,
    values=(2, 4, 3, 8),
    fix="the expert offset of a rank, and the all-reduce behind the experts",
    seen=("TTrace class",),
)


def _share(loop: Loop, ranks: int) -> int:
    count = int(loop.target.config.num_local_experts)
    if count % ranks:
        raise NotApplicable(f"{ranks} ranks do not divide {count} experts")
    return count // ranks


@shards("ffn-shard-swapped", "the first two of {value} ranks hold each other's experts")
def _(loop: Loop, ranks: int) -> Mutation:
    share, order = _share(loop, ranks), torch.arange(loop.target.config.num_local_experts)
    order[: 2 * share] = order[: 2 * share].roll(share)
    return running(loop, "all", lambda experts, run, hidden, ids, weights: run(hidden, order[ids], weights))


@shards("ffn-shard-missing", "the first of {value} ranks' experts alone are summed")
def _(loop: Loop, ranks: int) -> Mutation:
    share = _share(loop, ranks)
    return running(loop, "all", lambda experts, run, hidden, ids, weights: run(hidden, ids, weights * (ids < share)))


routed = Family(layered=True, fix="router and experts take the same normed stream")


def routed_from(loop: Loop, value: Layers, who: str, what: str) -> Mutation:
    """The router or the experts alone (`who`) are fed the stream un-normed, or without the attention."""
    return together(_split(layer, who, what) for _, layer in target_layers(loop, value))


@contextmanager
def _split(layer: Layer, who: str, what: str) -> Iterator[None]:
    seen: dict[str, Tensor] = {}

    def normed(inner: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        seen["fed"] = x if what == "un-normed" else inner(seen["before"])
        return inner(x)

    def forward(inner: Callable[..., Any], hidden: Tensor, *rest: Tensor) -> Any:
        return inner(seen["fed"].reshape(hidden.shape), *rest)

    second, taker = foreign(layer.post_attention_layernorm, "forward"), foreign(getattr(layer.mlp, who), "forward")
    with entering(layer, lambda x: seen.update(before=x)), second.around(normed), taker.around(forward):
        yield


for who, verb, stage in (("router", "is", "router_logits"), ("experts", "are", "ffn_out")):
    for id, what, says in (
        ("unnormed", "un-normed", "the stream un-normed"),
        ("before-attention", "before", "the norm of the stream without the attention"),
    ):
        routed(f"ffn-{who}-{id}", f"the {who} alone {verb} fed {says}", stages=(f"target.layers.*.{stage}",))(
            partial(routed_from, who=who, what=what)
        )
