"""Other routers, other experts, other MLPs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from parity.references.hypotheses.catalogue import FACTOR, Family, Fit, Mutation
from parity.references.hypotheses.lazily import F, Loop, Tensor, torch
from parity.references.hypotheses.mutating import (
    Layer,
    Layers,
    NotApplicable,
    changed,
    drafter_layers,
    exchanged,
    leaving,
    reweighted,
    target_layers,
    together,
)
from parity.references.points import foreign, replaced

FFN = ("target.layers.*.ffn_out",)
LOGITS = ("target.layers.*.router_logits",)
ROUTE_FIX = "top-k on the raw logits with bias, then softmax over the k values"


def mlps(loop: Loop, value: Layers = "all") -> list[Layer]:
    """The target's, of the layers that a value means."""
    return [layer.mlp for _, layer in target_layers(loop, value)]


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


def _running(loop: Loop, value: Layers, change: Callable[..., Tensor]) -> Mutation:
    """`change(experts, run, hidden, ids, weights)` gives what the experts of these layers make."""
    each = [mlp.experts for mlp in mlps(loop, value)]
    return together(foreign(one, "forward").around(partial(change, one)) for one in each)


numbered = Family(_running, stages=FFN, layered=True, fix="the index from chosen expert to weight")
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
    return _running(loop, "all", lambda experts, run, hidden, ids, weights: run(hidden, order[ids], weights))


@shards("ffn-shard-missing", "the first of {value} ranks' experts alone are summed")
def _(loop: Loop, ranks: int) -> Mutation:
    share = _share(loop, ranks)
    return _running(loop, "all", lambda experts, run, hidden, ids, weights: run(hidden, ids, weights * (ids < share)))


def _gating(loop: Loop, value: Layers, change: Callable[..., Tensor]) -> Mutation:
    """`change(gate, x, split)` is another activation: of x [.., 2I], gate and up interleaved, to [.., I].

    `split(x)` gives the clamped gate and up, and the gate behind its activation.
    """

    def around(experts: Layer, inner: Callable[..., Tensor], x: Tensor) -> Tensor:
        def split(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            gate, up = x[..., ::2].clamp(max=experts.limit), x[..., 1::2].clamp(-experts.limit, experts.limit)
            return gate, up, torch.sigmoid(gate * experts.alpha)

        return change(inner, x, split)

    each = [mlp.experts for mlp in mlps(loop, value)]
    return together(foreign(one, "_apply_gate").around(partial(around, one)) for one in each)


gates = Family(
    _gating,
    stages=FFN,
    layered=True,
    fix="gate and up are interleaved on the output axis: (clamp(up) + 1) * gate * sigmoid(1.702 * gate)",
)
gates("ffn-gate-up-swapped", "experts' activation: gate and up swapped")(
    lambda inner, x, split: inner(x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2))
)
gates("load-gate-up-interleaved", "experts' activation: halves", seen=("code paths of gpt-oss loaders",))(
    lambda inner, x, split: inner(x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2))
)


@gates("ffn-plus-one-missing", "experts' activation: without + 1")
def _(inner: Callable[..., Tensor], x: Tensor, split: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    gate, up, soft = split(x)
    return up * (gate * soft)


gates("ffn-plain-silu", "experts' activation: plain silu")(lambda inner, x, split: F.silu(x[..., ::2]) * x[..., 1::2])
gates("ffn-gelu", "experts' activation: gelu")(lambda inner, x, split: (split(x)[1] + 1) * F.gelu(split(x)[0]))
gates("ffn-gate-sigmoid-only", "experts' activation: sigmoid only")(
    lambda inner, x, split: (split(x)[1] + 1) * split(x)[2]
)


@gates("ffn-plus-one-on-gate", "experts' activation: gate + 1")
def _(inner: Callable[..., Tensor], x: Tensor, split: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    gate, up, soft = split(x)
    return up * (gate * soft + 1)


constants = Family(stages=FFN)


@constants(
    "ffn-clamp-missing",
    "gate and up are not clamped",
    layered=True,
    fix="swiglu_limit of the config",
    seen=("transformers #40197",),
)
def _(loop: Loop, value: Layers) -> Mutation:
    return together(replaced(mlp.experts, "limit", float("inf")) for mlp in mlps(loop, value))


def constant(loop: Loop, value: float, name: str) -> Mutation:
    """Another `alpha` or clamp `limit`."""
    if getattr(mlps(loop)[0].experts, name) == value:
        raise NotApplicable(f"{name} is {value}")
    return together(replaced(mlp.experts, name, value) for mlp in mlps(loop))


constants(
    "ffn-alpha",
    "the activation's alpha is {value:g}",
    values=(1.0, 1.7),
    fit=Fit(0.5, 4.0, clean=1.702),
    fix="swiglu_alpha of the config",
)(partial(constant, name="alpha"))
constants(
    "ffn-limit",
    "the activation's clamp is at {value:g}",
    values=(1.0, 6.0, 10.0),
    fit=Fit(0.5, 20.0, clean=7.0),
    fix="swiglu_limit of the config",
)(partial(constant, name="limit"))


def weighing(loop: Loop, value: Layers, parts: tuple[str, ...], change: Callable[[Tensor], Tensor]) -> Mutation:
    """`change(weight)` of the experts' parameters of these names [E, in, out], or biases [E, out]."""
    return together(changed(getattr(mlp.experts, part), change) for mlp in mlps(loop, value) for part in parts)


def biased(loop: Loop, value: Layers, part: str, times: float) -> Mutation:
    """The bias of `gate_up_proj` or `down_proj` so many times."""
    return weighing(loop, value, (f"{part}_bias",), lambda b: b * times)


def transposed(loop: Loop, value: Layers, part: str, square: bool = False) -> Mutation:
    """Expert weights read in another order of the same bytes; only `square` ones."""

    def change(w: Tensor) -> Tensor:
        if square and w.shape[1] != w.shape[2]:
            raise NotApplicable("no square weight")
        return w.transpose(1, 2).reshape(w.shape)

    return weighing(loop, value, (part,), change)


parameters = Family(stages=FFN, layered=True)
for part, name in (("down_proj", "down"), ("gate_up_proj", "gate-up")):
    for id, times, says in (("missing", 0.0, "is missing"), ("twice", 2.0, "is added twice")):
        parameters(
            f"ffn-{name}-bias-{id}",
            f"the experts' {part} bias {says}",
            fix=f"{part}_bias is added once, inside the routing weight",
        )(partial(biased, part=part, times=times))
    parameters(
        f"load-{name}-transposed",
        f"the experts' {part} is read transposed in the same shape",
        fix="expert weights are [E, in, out] in memory, [E, out, in] in MXFP4 blocks",
    )(partial(transposed, part=part))

parameters(
    "load-square-transpose",
    "the square down_proj is not transposed",
    fix="the transpose behind dequantisation, which a square weight does not ask for by its shape",
    seen=("code paths of gpt-oss loaders",),
)(partial(transposed, part="down_proj", square=True))


@parameters(
    "ffn-down-bias-per-rank",
    "the experts' down bias is added {value} times, once per rank",
    layered=False,
    values=(4, 8, 2, 16),
    fix="add the bias behind the all-reduce, or on one rank",
    seen=("class of mirage #722",),
)
def _(loop: Loop, ranks: int) -> Mutation:
    return biased(loop, "all", "down_proj", ranks)


@parameters(
    "ffn-down-bias-unweighted",
    "the down bias is added behind the routing weight",
    fix="the down bias is added before the routing weight multiplies",
)
def _(loop: Loop, value: Layers) -> Mutation:
    def change(experts: Layer, run: Callable[..., Tensor], hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        biases: Tensor = experts.down_proj_bias[ids]
        return run(hidden, ids, weights) + ((1 - weights)[..., None] * biases).sum(1)

    return _running(loop, value, change)


@parameters(
    "ffn-gate-up-bias-layout",
    "the gate_up bias in halves, the weights interleaved",
    fix="weights and bias of gate_up are de-interleaved together",
)
def _(loop: Loop, value: Layers) -> Mutation:
    change = lambda b: b.unflatten(1, (2, -1)).transpose(1, 2).flatten(1)  # noqa: E731
    return weighing(loop, value, ("gate_up_proj_bias",), change)


def _drafter_mlps(loop: Loop, value: Layers, change: Callable[[Layer], Mutation]) -> Mutation:
    return together(change(layer.mlp) for _, layer in drafter_layers(loop, value))


def _activated(mlp: Layer, act: Callable[[Tensor, Tensor], Tensor]) -> Mutation:
    """`act(gate, up)` between the projections."""
    return foreign(mlp, "forward").around(lambda inner, x: mlp.down_proj(act(mlp.gate_proj(x), mlp.up_proj(x))))


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


drafter = Family(
    _drafter_mlps,
    stages=("drafter.layers.*.ffn_out",),
    layered=True,
    fix="the drafter's MLP is Llama's: down(silu(gate) * up)",
)
drafter("drafter-mlp-gate-and-up-swapped", "drafter: MLP, gate and up swapped")(
    lambda mlp: exchanged(mlp.gate_proj.weight, mlp.up_proj.weight)
)


@drafter("drafter-mlp-gate-and-up-interleaved", "drafter: MLP, gate and up interleaved")
def _(mlp: Layer) -> Mutation:
    """One fused weight in halves, read as interleaved."""
    gate, up = mlp.gate_proj.weight, mlp.up_proj.weight
    fused = torch.cat((gate.data, up.data))
    return together((reweighted(gate, fused[::2]), reweighted(up, fused[1::2])))


drafter("drafter-mlp-gelu", "drafter: MLP, gelu")(
    lambda mlp: _activated(mlp, lambda gate, up: F.gelu(gate, approximate="tanh") * up)
)
drafter("drafter-mlp-swiglu-of-gpt-oss", "drafter: MLP, swiglu of gpt-oss")(lambda mlp: _activated(mlp, _swiglu))
drafter("drafter-mlp-no-up", "drafter: MLP, no up")(lambda mlp: _activated(mlp, lambda gate, up: F.silu(gate)))
