"""Other routers: other weights, other choices, other experts than the chosen ones, other inputs of either."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from parity.references.hypotheses.catalogue import FACTOR, Family, Fit, Mutation
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
routing("ffn-missing", "routing weights: none, the experts are left out")(lambda logits, weights, ids: 0 * weights)
routing("ffn-first-expert-only", "routing weights: first only")(
    lambda logits, weights, ids: (torch.arange(weights.shape[1]) == 0).to(weights).expand_as(weights)
)

limited = Family(stages=FFN, fix="every chosen expert runs on every row that chose it, whatever its weight")


def small_dropped(loop: Loop, least: float, whole: bool) -> Mutation:
    """Experts with less than `least` of a row's weight are left out; the rest sum to one again (`whole`) or do not."""

    def change(logits: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        kept = weights * (weights >= least)
        return F.normalize(kept, 1, 1) if whole else kept

    return _routing(loop, "all", change)


for end, whole, says in (("", False, ""), ("-normalised", True, ", and the others' weights sum to one")):
    limited(
        f"ffn-small-weight-dropped{end}",
        f"an expert whose routing weight is below {{value:.4g}} is left out{says}",
        values=(0.1, 0.05, 0.01, 0.2),
        fit=Fit(0.005, 0.5, clean=None, log=True),
    )(partial(small_dropped, whole=whole))


crowded = Family(stages=FFN, fix="no expert leaves out a row that chose it, however many do")


@crowded(
    "ffn-expert-capacity",
    "an expert runs on the first {value} rows of a pass that chose it, and not on the others",
    values=(32, 64, 16, 128, 8),
    fit=Fit(1, 256, clean=None, log=True, whole=True),
    seen=("capacity factors of expert-parallel layers",),
)
def _(loop: Loop, most: int) -> Mutation:
    def change(logits: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        row_of = F.one_hot(ids, logits.shape[1]).sum(1).cumsum(0).gather(1, ids)  # from one on, of each expert
        return weights * (row_of <= most)

    return _routing(loop, "all", change)


router = Family(stages=LOGITS)


@router(
    "ffn-weights-scaled",
    "routing weights, or what the experts add up to, are {value:.4g} times what they should be",
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


def _choosing(loop: Loop, value: Layers, change: Callable[[Tensor, Tensor], Tensor]) -> Mutation:
    """`change(logits, ids)` gives other ids [S, X] than those of the largest logits [S, E], the largest first."""

    def forward(inner: Callable[..., Any], hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, weights, ids = inner(hidden)
        return logits, weights, change(logits, ids)

    return together(foreign(mlp.router, "forward").around(forward) for mlp in mlps(loop, value))


def last_replaced(logits: Tensor, ids: Tensor, place: int, margin: float = float("inf")) -> Tensor:
    """The last chosen expert is the one in another `place` by its logit, where that is within `margin` of its own."""
    ranked = logits.topk(logits.shape[1])
    if not -logits.shape[1] <= place < logits.shape[1] or ids.shape[1] == logits.shape[1]:
        raise NotApplicable(f"{logits.shape[1]} experts have no place {place} that is not chosen")
    last = ids.shape[1] - 1
    near = ranked.values[:, last] - ranked.values[:, place] < margin
    return torch.cat((ids[:, :last], torch.where(near, ranked.indices[:, place], ids[:, last])[:, None]), 1)


other = choices.part(_choosing, layered=True, fix=ROUTE_FIX)
other("ffn-lowest-experts", "the experts with the smallest logits")(
    lambda logits, ids: logits.topk(ids.shape[1], largest=False).indices
)
other("ffn-last-expert-lowest", "the last of a row's experts is the one with the smallest logit")(
    partial(last_replaced, place=-1)
)
other("ffn-last-expert-left-out", "the last of a row's experts is the best one left out")(
    lambda logits, ids: last_replaced(logits, ids, ids.shape[1])
)


def chosen_by(loop: Loop, value: Layers, times: float) -> Mutation:
    """The choice by scores that hold the router's bias so many times; the scores that are weighed are right."""

    def forward(router: Layer, inner: Callable[..., Any], hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, weights, ids = inner(hidden)
        return logits, weights, (logits + (times - 1) * router.bias).topk(ids.shape[1]).indices

    return together(foreign(mlp.router, "forward").around(partial(forward, mlp.router)) for mlp in mlps(loop, value))


for end, times, says in (
    ("without-bias", 0.0, "without the router's bias"),
    ("bias-twice", 2.0, "with its bias twice"),
):
    choices(f"ffn-chosen-{end}", f"experts are chosen by scores {says}", layered=True, fix=ROUTE_FIX)(
        partial(chosen_by, times=times)
    )


@choices(
    "ffn-chosen-ahead",
    "experts are chosen by what the router reads {value} before",
    values=("one layer", "two layers"),
    fix="experts that are fetched ahead are run only where the layer's own router chooses them",
)
def _(loop: Loop, value: str) -> Mutation:
    read: dict[int, Tensor] = {}

    def forward(number: int, inner: Callable[..., Any], hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        read[number] = hidden
        before = read.get(number - (1 if value == "one layer" else 2), hidden)
        return inner(hidden)[0], *inner(before)[1:]

    layers = target_layers(loop)
    return together(foreign(layer.mlp.router, "forward").around(partial(forward, number)) for number, layer in layers)


@choices(
    "ffn-runner-up",
    "the best expert left out runs in place of the last one where it is within {value:.4g} of it",
    values=tuple(2.0**exponent for exponent in range(-5, 3)),
    fit=Fit(2.0**-8, 8.0, clean=None, log=True),
    fix="an exact top-k of the router's logits: no approximate one, no sort of rounded values",
)
def _(loop: Loop, margin: float) -> Mutation:
    return _choosing(loop, "all", lambda logits, ids: last_replaced(logits, ids, ids.shape[1], margin))


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
