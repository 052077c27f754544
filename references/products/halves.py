"""The second half of a layer, from the stream behind its attention, as it is and with changes inside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from parity.references.products import gated, norms

Second = Callable[[Tensor], Tensor]
"""The second half of a layer, from the stream behind attention [R, H]."""

Change = Callable[[Tensor], Tensor]
"""A change of a tensor, of the same shape."""

Routed = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From the stream and its normed rows [R, H] to the scores [R, E] by which experts are chosen, and those by which they
are weighed."""


@dataclass(frozen=True)
class HalfChange:
    """A change of a second half.

    Attributes:
        norm: what stands in its norm's place.
        inner: a change of its MLP's first half.
        shares: a change of what experts weigh, [R, E].
        bias: a change of their down biases, [E, H].
        routed: another router.
    """

    norm: norms.Norm | None = None
    inner: gated.Variant = lambda of: of
    shares: Change = lambda share: share
    bias: Change = lambda bias: bias
    routed: Routed | None = None


AS_IT_IS = HalfChange()


def second_half(layer: Any, side: str, change: HalfChange = AS_IT_IS) -> Second:
    """What a layer makes of the stream behind its attention."""
    return (_experts if side == "target" else _mlp)(layer, change)


def gated_of(layer: Any, side: str) -> tuple[gated.Gated, float, float]:
    """A layer's MLP without rows, and its activation's slope and limit."""
    held = layer.mlp
    if side == "target":
        experts = held.experts
        none = held.router.weight.detach().double()[:0]
        return gated.gated_experts(experts, none), float(experts.alpha), float(experts.limit)
    gate, up = (one.weight.detach().double()[None] for one in (held.gate_proj, held.up_proj))
    return gated.Gated(gate[0, :0], gate, up, None, None, gated.swiglu), 1.0, math.inf


def of_norms(layer: Any, others: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, HalfChange]]:
    """Other norms in the second one's place; `others` by name."""
    weights = [(name, norm.weight.detach().double()) for name, norm in others]
    for says, norm in norms.variants(*norms.weight_and_eps(layer.post_attention_layernorm), weights):
        yield f"the second norm: {says}", HalfChange(norm=norm)


def of_router(layer: Any, others: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, HalfChange]]:
    """Other routers in its place, by what they say; `others` are other layers', by name."""
    weight, bias = _held(layer.mlp.router)
    none = torch.zeros_like(bias)
    biases = {"without its bias": none, "with the bias of the expert before": bias.roll(1)}
    biases["with the bias of the expert behind"] = bias.roll(-1)
    for expert in range(len(bias)):
        for other in {(expert - 1) % len(bias), (expert + 1) % len(bias)} - {expert}:
            taken = bias.clone()
            taken[expert] = bias[other]
            biases[f"with expert {other}'s bias for expert {expert}"] = taken
    for says, taken in biases.items():
        yield f"the router {says}", HalfChange(routed=partial(_by, chosen=(weight, taken), weighed=(weight, taken)))
    own, bare = (weight, bias), (weight, none)
    yield "experts weighed without the router's bias", HalfChange(routed=partial(_by, chosen=own, weighed=bare))
    yield "experts chosen without the router's bias", HalfChange(routed=partial(_by, chosen=bare, weighed=own))
    for name, router in others:
        yield f"the router of {name}", HalfChange(routed=partial(_by, chosen=_held(router), weighed=_held(router)))
    for says, norm in norms.variants(*norms.weight_and_eps(layer.post_attention_layernorm), ()):
        yield f"the norm of the router's rows alone: {says}", HalfChange(routed=partial(_normed, norm=norm, by=own))


Linear = tuple[Tensor, Tensor]
"""Weight and bias of a router, float64."""


def _held(router: Any) -> Linear:
    return router.weight.detach().double(), router.bias.detach().double()


def _by(x: Tensor, normed: Tensor, chosen: Linear, weighed: Linear) -> tuple[Tensor, Tensor]:
    return F.linear(normed, *chosen), F.linear(normed, *weighed)


def _normed(x: Tensor, normed: Tensor, norm: norms.Norm, by: Linear) -> tuple[Tensor, Tensor]:
    scores = F.linear(norm(x), *by)
    return scores, scores


def _mlp(layer: Any, change: HalfChange) -> Second:
    norm = change.norm or norms.of_module(layer.post_attention_layernorm)
    fed, down = change.inner(gated_of(layer, "drafter")[0]), layer.mlp.down_proj.weight.detach().double()

    def half(x: Tensor) -> Tensor:
        out: Tensor = x + fed.of_expert(0, norm(x)) @ down.T
        return out

    return half


def _experts(layer: Any, change: HalfChange) -> Second:
    norm, held = change.norm or norms.of_module(layer.post_attention_layernorm), layer.mlp.experts
    own = _held(layer.mlp.router)
    routed = change.routed or partial(_by, chosen=own, weighed=own)
    down, down_bias = held.down_proj.detach().double(), change.bias(held.down_proj_bias.detach().double())
    fed = change.inner(gated_of(layer, "target")[0])

    def half(x: Tensor) -> Tensor:
        normed = norm(x)
        chosen, weighed = routed(x, normed)
        ids = chosen.topk(layer.mlp.router.top_k, dim=-1).indices
        share = torch.zeros_like(chosen).scatter(1, ids, weighed.gather(1, ids).softmax(-1))
        shares = change.shares(share)
        out: Tensor = x + shares @ down_bias
        for expert in ids.unique().tolist():
            rows = shares[:, expert].nonzero()[:, 0]
            inner = fed.of_expert(expert, normed[rows]) * shares[rows, expert, None]
            out.index_add_(0, rows, inner @ down[expert])
        return out

    return half
