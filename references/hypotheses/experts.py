"""Other experts, other MLPs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from parity.references.hypotheses.catalogue import Family, Fit, Mutation
from parity.references.hypotheses.lazily import F, Loop, Tensor, torch
from parity.references.hypotheses.mutating import (
    Layer,
    Layers,
    NotApplicable,
    changed,
    drafter_layers,
    exchanged,
    mlps,
    reweighted,
    together,
)
from parity.references.hypotheses.routing import FFN, running
from parity.references.points import foreign, replaced


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
    fit=Fit(0.5, 4.0, clean=1.702, constant="target.swiglu_alpha"),
    fix="swiglu_alpha of the config",
)(partial(constant, name="alpha"))
constants(
    "ffn-limit",
    "the activation's clamp is at {value:g}",
    values=(1.0, 6.0, 10.0),
    fit=Fit(0.5, 20.0, clean=7.0, constant="target.swiglu_limit"),
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

    return running(loop, value, change)


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


def _cut_elsewhere(mlp: Layer, columns: int) -> Mutation:
    """The fused weight [gate, up] cut so many columns before its middle, and `columns` < 0 behind it."""
    gate, up = mlp.gate_proj.weight, mlp.up_proj.weight
    fused, wide = torch.cat((gate.data, up.data)), len(gate)
    if abs(columns) >= wide:
        raise NotApplicable("gate is no wider than that")
    first = wide - columns if columns > 0 else -columns
    return reweighted(up if columns > 0 else gate, fused[first : first + wide])


for columns in (64, 32, 16, -16, -32, -64):
    drafter(
        f"drafter-mlp-{'up' if columns > 0 else 'gate'}-{abs(columns)}-off",
        f"drafter: MLP, {'up' if columns > 0 else 'gate'} is cut {abs(columns)} columns "
        f"{'early' if columns > 0 else 'late'} out of gate and up side by side",
        fix="where up begins in a fused weight: behind all columns of gate, padding included",
    )(partial(_cut_elsewhere, columns=columns))


drafter("drafter-mlp-gelu", "drafter: MLP, gelu")(
    lambda mlp: _activated(mlp, lambda gate, up: F.gelu(gate, approximate="tanh") * up)
)
drafter("drafter-mlp-swiglu-of-gpt-oss", "drafter: MLP, swiglu of gpt-oss")(lambda mlp: _activated(mlp, _swiglu))
drafter("drafter-mlp-no-up", "drafter: MLP, no up")(lambda mlp: _activated(mlp, lambda gate, up: F.silu(gate)))
