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

from parity.references.products import gated, norm_changes, norms
from parity.references.products.activations import swiglu
from parity.references.products.experts import gated_experts

Second = Callable[[Tensor], Tensor]
"""The second half of a layer, from the stream behind attention [R, H]."""

Change = Callable[[Tensor], Tensor]
"""A change of a tensor, of the same shape."""

Routed = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From the stream and its normed rows [R, H] to the scores [R, E] by which experts are chosen, and those by which they
are weighed."""


Linear = tuple[Tensor, Tensor]
"""Weight and bias of a router, float64."""


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

    norm: norm_changes.Norm | None = None
    inner: gated.Variant = lambda of: of
    shares: Change = lambda share: share
    bias: Change = lambda bias: bias
    routed: Routed | None = None


AS_IT_IS = HalfChange()


@dataclass(frozen=True)
class SecondHalf:
    """A layer's second half with its weights in float64, made once for all changes.

    Attributes:
        fed: its MLP's first half, without rows; `act` are the activation's slope and limit.
        down, down_bias: float64 [E, I, H] and [E, H] of experts, [I, H] and None of one MLP.
        router: weight [E, H] and bias [E]; None of one MLP.
    """

    layer: Any
    fed: gated.Gated
    act: tuple[float, float]
    down: Tensor
    down_bias: Tensor | None = None
    router: Linear | None = None

    @classmethod
    def of(cls, layer: Any, side: str) -> SecondHalf:
        """That of a layer of a side."""
        held = layer.mlp
        if side == "target":
            experts, none = held.experts, held.router.weight.detach().double()[:0]
            act, fed = (float(experts.alpha), float(experts.limit)), gated_experts(experts, none)
            down, bias = experts.down_proj.detach().double(), experts.down_proj_bias.detach().double()
            return cls(layer, fed, act, down, bias, linear_of(held.router))
        gate, up = (one.weight.detach().double()[None] for one in (held.gate_proj, held.up_proj))
        fed = gated.Gated(gate[0, :0], gate, up, None, None, swiglu)
        return cls(layer, fed, (1.0, math.inf), held.down_proj.weight.detach().double().T)

    def under(self, change: HalfChange = AS_IT_IS) -> Second:
        """What it makes of the stream, under a change."""
        norm = change.norm or norms.of_module(self.layer.post_attention_layernorm)
        fed = change.inner(self.fed)
        if self.router is None or self.down_bias is None:
            return lambda x: x + fed.of_expert(0, norm(x)) @ self.down
        routed = change.routed or partial(_by, chosen=self.router, weighed=self.router)
        return partial(self._experts, norm, fed, routed, change.shares, change.bias(self.down_bias))

    def _experts(
        self, norm: norm_changes.Norm, fed: gated.Gated, routed: Routed, weighed: Change, bias: Tensor, x: Tensor
    ) -> Tensor:
        normed = norm(x)
        chosen, scores = routed(x, normed)
        ids = chosen.topk(self.layer.mlp.router.top_k, dim=-1).indices
        shares = weighed(torch.zeros_like(chosen).scatter(1, ids, scores.gather(1, ids).softmax(-1)))
        out: Tensor = x + shares @ bias
        for expert in ids.unique().tolist():
            rows = shares[:, expert].nonzero()[:, 0]
            inner = fed.of_expert(expert, normed[rows]) * shares[rows, expert, None]
            out.index_add_(0, rows, inner @ self.down[expert])
        return out


def of_norms(layer: Any, others: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, HalfChange]]:
    """Other norms in the second one's place; `others` by name."""
    weights = [(name, norm.weight.detach().double()) for name, norm in others]
    for says, norm in norm_changes.variants(*norms.weight_and_eps(layer.post_attention_layernorm), weights):
        yield f"the second norm: {says}", HalfChange(norm=norm)


def of_router(layer: Any, others: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, HalfChange]]:
    """Other routers in its place, by what they say; `others` are other layers', by name."""
    weight, bias = linear_of(layer.mlp.router)
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
        yield (
            f"the router of {name}",
            HalfChange(routed=partial(_by, chosen=linear_of(router), weighed=linear_of(router))),
        )
    for says, norm in norm_changes.variants(*norms.weight_and_eps(layer.post_attention_layernorm), ()):
        yield f"the norm of the router's rows alone: {says}", HalfChange(routed=partial(_normed, norm=norm, by=own))


def linear_of(router: Any) -> Linear:
    """A router's weight and bias."""
    return router.weight.detach().double(), router.bias.detach().double()


def _by(x: Tensor, normed: Tensor, chosen: Linear, weighed: Linear) -> tuple[Tensor, Tensor]:
    return F.linear(normed, *chosen), F.linear(normed, *weighed)


def _normed(x: Tensor, normed: Tensor, norm: norm_changes.Norm, by: Linear) -> tuple[Tensor, Tensor]:
    scores = F.linear(norm(x), *by)
    return scores, scores
