"""What a gated MLP gives at some rows if its activation or its first weights were others, each change alone.

Inner activations of rows [R, H]: of each expert [R, E, I], or of one MLP as one expert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

TILE = 32
"""Inputs behind the last whole tiles are what a loop over tiles forgets; MXFP4 blocks are as wide."""


@dataclass(frozen=True)
class Gated:
    """The operands of the inner half: x [R, H], gate and up [E, I, H] with biases [E, I] (None where there are none).

    `act` makes the inner activation of gate and up.
    """

    x: Tensor
    gate: Tensor
    up: Tensor
    gate_bias: Tensor | None
    up_bias: Tensor | None
    act: Callable[[Tensor, Tensor], Tensor]

    def inner(self) -> Tensor:
        """[R, E, I]."""
        gate, up = (torch.einsum("rh,eih->rei", self.x, weight) for weight in (self.gate, self.up))
        gate, up = (
            side if bias is None else side + bias for side, bias in ((gate, self.gate_bias), (up, self.up_bias))
        )
        return self.act(gate, up)


def clamped_swiglu(alpha: float, limit: float) -> Callable[[Tensor, Tensor], Tensor]:
    """gpt-oss's: (up + 1) gate sigmoid(alpha gate), both clamped."""

    def act(gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (up + 1) * gate * torch.sigmoid(alpha * gate)

    return act


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """A Llama layer's."""
    return F.silu(gate) * up


Variant = Callable[[Gated], Gated]


def variants(of: Gated, alpha: float = 1.0, limit: float = float("inf")) -> Iterator[tuple[str, Variant]]:
    """Each variant with what it says; `alpha` and `limit` are the activation's where it has them."""
    yield "gate and up exchanged", _exchanged
    for name, act in _activations(alpha, limit) if limit < float("inf") else _plain():
        yield name, partial(_with, act=act)
    if of.gate_bias is not None:
        yield "no bias of gate", partial(_with, gate_bias=None)
        yield "no bias of up", partial(_with, up_bias=None)
        yield "no bias of gate and up", partial(_with, gate_bias=None, up_bias=None)
    for side in ("gate", "up"):
        yield f"neighbouring inputs of {side} exchanged", partial(_changed, sides=(side,), change=_neighbours)
        for step, who in ((-1, "next"), (1, "previous")) if len(of.gate) > 1 else ():
            yield f"{side} of the {who} expert", partial(_changed, sides=(side,), change=partial(_rolled, step=step))
    for first in range(TILE, of.x.shape[1], TILE):
        for says, sides in (("gate and up", ("gate", "up")), ("gate", ("gate",)), ("up", ("up",))):
            cut = partial(_changed, sides=sides, change=partial(_cut, first=first))
            yield f"inputs of {says} from {first} on left out", cut


def _with(one: Gated, **changes: Any) -> Gated:
    return replace(one, **changes)


def _exchanged(one: Gated) -> Gated:
    return replace(one, gate=one.up, up=one.gate, gate_bias=one.up_bias, up_bias=one.gate_bias)


def _changed(one: Gated, sides: Sequence[str], change: Callable[[Tensor], Tensor]) -> Gated:
    return _with(one, **{side: change(getattr(one, side)) for side in sides})


def _neighbours(weight: Tensor) -> Tensor:
    exchanged: Tensor = weight.unflatten(2, (-1, 2)).flip(3).flatten(2)
    return exchanged


def _rolled(weight: Tensor, step: int) -> Tensor:
    return weight.roll(step, 0)


def _activations(alpha: float, limit: float) -> Iterator[tuple[str, Callable[[Tensor, Tensor], Tensor]]]:
    inf = float("inf")
    right = clamped_swiglu(alpha, limit)
    yield "no clamp", clamped_swiglu(alpha, inf)
    yield "no clamp of up", lambda gate, up: (up + 1) * right(gate, torch.zeros_like(up))
    yield "a plain SiLU for the sigmoid's slope", clamped_swiglu(1.0, limit)
    yield "up without the one that is added", lambda gate, up: right(gate, up.clamp(-limit, limit) - 1)


def _plain() -> Iterator[tuple[str, Callable[[Tensor, Tensor], Tensor]]]:
    yield "GELU for SiLU", lambda gate, up: F.gelu(gate) * up
    yield "GELU's tanh form for SiLU", lambda gate, up: F.gelu(gate, approximate="tanh") * up
    yield "GELU's sigmoid form for SiLU", lambda gate, up: gate * torch.sigmoid(1.702 * gate) * up
    yield "ReLU for SiLU", lambda gate, up: F.relu(gate) * up


def _cut(weight: Tensor, first: int) -> Tensor:
    cut = weight.clone()
    cut[..., first:] = 0
    return cut
