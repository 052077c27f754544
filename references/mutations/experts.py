"""Other routers, other experts, other MLPs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.nn import functional as F

from parity.references.mutations import (
    NotApplicable,
    changed,
    drafter_layers,
    replaced,
    reweighted,
    target_layers,
    together,
    wrapped,
)


def _mlps(loop: Any, value: Any = "all") -> list[torch.nn.Module]:
    return [layer.mlp for _, layer in target_layers(loop, value)]


def routed(loop: Any, value: Any, how: str) -> AbstractContextManager:
    """Other routing weights [S, X] for the chosen experts."""
    change = {
        "softmax before top-k": lambda logits, weights, chosen: logits.softmax(-1).gather(1, chosen),
        "sigmoid": lambda logits, weights, chosen: logits.gather(1, chosen).sigmoid(),
        "sigmoid, normalised": lambda logits, weights, chosen: F.normalize(logits.gather(1, chosen).sigmoid(), 1, 1),
        "uniform": lambda logits, weights, chosen: torch.full_like(weights, 1 / weights.shape[1]),
        "one": lambda logits, weights, chosen: torch.ones_like(weights),
        "reversed": lambda logits, weights, chosen: weights.flip(1),
        "in the order of the ids": lambda logits, weights, chosen: weights.gather(1, chosen.argsort(1).argsort(1)),
        "last dropped": lambda logits, weights, chosen: (
            weights * (torch.arange(weights.shape[1]) < weights.shape[1] - 1)
        ),
        "first only": lambda logits, weights, chosen: (
            (torch.arange(weights.shape[1]) == 0).to(weights).expand_as(weights)
        ),
        "raw logits": lambda logits, weights, chosen: logits.gather(1, chosen),
    }[how]
    return together(_weighted(mlp, change) for mlp in _mlps(loop, value))


@contextmanager
def _weighted(mlp: torch.nn.Module, change: Callable):
    """Behind the hook that hands over logits and choices, so that what it puts back is what counts."""

    def hook(module, args, output):
        logits, weights, chosen = output
        return logits, change(logits, weights, chosen).to(weights.dtype), chosen

    handle = mlp.router.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def weights_scaled(loop: Any, factor: float) -> AbstractContextManager:
    """Routing weights times a factor."""
    return together(_weighted(mlp, lambda logits, weights, chosen: weights * factor) for mlp in _mlps(loop))


def router_bias(loop: Any, value: Any, times: float) -> AbstractContextManager:
    """The router's bias so many times."""
    return together(changed(mlp.router.bias, lambda b: b * times) for mlp in _mlps(loop, value))


def top_k(loop: Any, delta: int) -> AbstractContextManager:
    """So many experts more a token."""
    many = loop.target.config.num_experts_per_tok + delta
    if not 1 <= many <= loop.target.config.num_local_experts:
        raise NotApplicable(f"{many} experts a token")
    return together(replaced(mlp.router, "top_k", many) for mlp in _mlps(loop))


def lowest(loop: Any, value: Any) -> AbstractContextManager:
    """The experts with the smallest logits."""

    def forward(inner, hidden):
        logits, weights, _ = inner(hidden)
        return logits, weights, logits.topk(weights.shape[1], largest=False).indices

    return together(wrapped(mlp.router, "forward", forward) for mlp in _mlps(loop, value))


def numbered(loop: Any, value: Any, how: str) -> AbstractContextManager:
    """The chosen experts run with another expert's weights."""
    count = loop.target.config.num_local_experts
    maps = {"next": torch.arange(count).roll(-1), "previous": torch.arange(count).roll(1)}
    maps["reversed"] = torch.arange(count).flip(0)
    around = lambda inner, hidden, chosen, weights: inner(hidden, maps[how][chosen], weights)  # noqa: E731
    return together(wrapped(mlp.experts, "forward", around) for mlp in _mlps(loop, value))


def sharded(loop: Any, ranks: int, how: str) -> AbstractContextManager:
    """Experts over ranks: the first two ranks' shards swapped, or the first rank's alone summed."""
    count = loop.target.config.num_local_experts
    if count % ranks:
        raise NotApplicable(f"{ranks} ranks do not divide {count} experts")
    size = count // ranks
    order = torch.arange(count)
    order[: 2 * size] = order[: 2 * size].roll(size)

    def around(inner, hidden, chosen, weights):
        if how == "swapped":
            return inner(hidden, order[chosen], weights)
        return inner(hidden, chosen, weights * (chosen < size))

    return together(wrapped(mlp.experts, "forward", around) for mlp in _mlps(loop))


def gated(loop: Any, value: Any, how: str) -> AbstractContextManager:
    """Another activation between gate_up and down."""

    def split(experts, x):
        gate, up = x[..., ::2].clamp(max=experts.limit), x[..., 1::2].clamp(-experts.limit, experts.limit)
        return gate, up, gate * torch.sigmoid(gate * experts.alpha)

    around = {
        "gate and up swapped": lambda experts: lambda inner, x: inner(x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)),
        "halves": lambda experts: lambda inner, x: inner(x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)),
        "without + 1": lambda experts: lambda inner, x: split(experts, x)[1] * split(experts, x)[2],
        "plain silu": lambda experts: lambda inner, x: F.silu(x[..., ::2]) * x[..., 1::2],
        "gelu": lambda experts: lambda inner, x: (split(experts, x)[1] + 1) * F.gelu(split(experts, x)[0]),
        "sigmoid only": lambda experts: (
            lambda inner, x: (split(experts, x)[1] + 1) * torch.sigmoid(experts.alpha * split(experts, x)[0])
        ),
        "gate + 1": lambda experts: lambda inner, x: split(experts, x)[1] * (split(experts, x)[2] + 1),
    }[how]
    return together(wrapped(mlp.experts, "_apply_gate", around(mlp.experts)) for mlp in _mlps(loop, value))


def constant(loop: Any, value: float, name: str) -> AbstractContextManager:
    """Another `alpha` or clamp `limit`."""
    mlps = _mlps(loop)
    if getattr(mlps[0].experts, name) == value:
        raise NotApplicable(f"{name} is {value}")
    return together(replaced(mlp.experts, name, value) for mlp in mlps)


def clamped(loop: Any, value: Any) -> AbstractContextManager:
    """No clamp."""
    return together(replaced(mlp.experts, "limit", float("inf")) for mlp in _mlps(loop, value))


def biased(loop: Any, value: Any, part: str, times: float) -> AbstractContextManager:
    """The bias of `gate_up_proj` or `down_proj` so many times."""
    return together(changed(getattr(mlp.experts, f"{part}_bias"), lambda b: b * times) for mlp in _mlps(loop, value))


def bias_per_rank(loop: Any, ranks: int) -> AbstractContextManager:
    """The down bias once per rank."""
    return biased(loop, "all", "down_proj", ranks)


def bias_unweighted(loop: Any, value: Any) -> AbstractContextManager:
    """The down bias added behind the routing weight."""

    def around(experts):
        def forward(inner, hidden, chosen, weights):
            return inner(hidden, chosen, weights) + ((1 - weights)[..., None] * experts.down_proj_bias[chosen]).sum(1)

        return forward

    return together(wrapped(mlp.experts, "forward", around(mlp.experts)) for mlp in _mlps(loop, value))


def bias_layout(loop: Any, value: Any) -> AbstractContextManager:
    """The gate_up bias in halves while the weights are interleaved."""
    change = lambda b: b.unflatten(1, (2, -1)).transpose(1, 2).flatten(1)  # noqa: E731
    return together(changed(mlp.experts.gate_up_proj_bias, change) for mlp in _mlps(loop, value))


def stored(loop: Any, value: Any, part: str, how: str) -> AbstractContextManager:
    """Expert weights [E, in, out] read in another order of the same bytes."""

    def change(w):
        if how == "square not transposed" and w.shape[1] != w.shape[2]:
            raise NotApplicable("no square weight")
        return w.transpose(1, 2).reshape(w.shape)

    return together(changed(getattr(mlp.experts, part), change) for mlp in _mlps(loop, value))


def _expert_weights(loop: Any, value: Any, parts: tuple[str, ...]) -> list[torch.Tensor]:
    return [getattr(mlp.experts, part) for mlp in _mlps(loop, value) for part in parts]


def nibbles(loop: Any, value: Any, parts: tuple[str, ...], axis: int = 1) -> AbstractContextManager:
    """The high nibble first: each pair of neighbours swapped, inputs (`axis` 1) or outputs (2).

    Bytes hold two inputs in MXFP4; the same swap comes about where a loader packs an unquantised checkpoint itself.
    """
    change = lambda w: w.unflatten(axis, (-1, 2)).flip(axis + 1).flatten(axis, axis + 1)  # noqa: E731
    return together(changed(weight, change) for weight in _expert_weights(loop, value, parts))


def block_scale(loop: Any, factor: float, parts: tuple[str, ...]) -> AbstractContextManager:
    """Block scales off by a power of two, or weights packed with them."""
    return together(changed(weight, lambda w: w * factor) for weight in _expert_weights(loop, "all", parts))


def drafter_mlp(loop: Any, value: Any, how: str) -> AbstractContextManager:
    """The drafter's MLP gone wrong."""

    def one(mlp):
        gate, up = mlp.gate_proj.weight, mlp.up_proj.weight
        around = {
            "gelu": lambda inner, x: mlp.down_proj(F.gelu(mlp.gate_proj(x), approximate="tanh") * mlp.up_proj(x)),
            "swiglu of gpt-oss": lambda inner, x: mlp.down_proj(_swiglu(mlp.gate_proj(x), mlp.up_proj(x))),
            "no up": lambda inner, x: mlp.down_proj(F.silu(mlp.gate_proj(x))),
        }
        if how == "gate and up swapped":
            return together((reweighted(gate, up.data), reweighted(up, gate.data)))
        if how == "gate and up interleaved":
            return _halves(gate, up)
        return wrapped(mlp, "forward", around[how])

    return together(one(layer.mlp) for _, layer in drafter_layers(loop, value))


def _swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


def _halves(gate: torch.Tensor, up: torch.Tensor) -> AbstractContextManager:
    """One fused weight in halves, read as interleaved."""
    fused = torch.cat((gate.data, up.data))
    return together((reweighted(gate, fused[::2]), reweighted(up, fused[1::2])))
