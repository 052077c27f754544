"""The operands of a gated MLP's inner half.

Inner activations of rows [R, H]: of each expert [R, E, I], or of one MLP as one expert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from parity.references.products.activations import Activation
from parity.references.products.product import STEPS, as_it_is


def times_weight(x: Tensor, weight: Tensor) -> Tensor:
    """Rows [r, H] by weights [..., I, H], [r, ..., I]."""
    return torch.einsum("rh,...ih->r...i", x, weight)


@dataclass(frozen=True)
class Gated:
    """The operands of the inner half: x [R, H], gate and up [E, I, H] with biases [E, I] (None where there are none).

    `act` makes the inner activation of gate and up; `multiply` x [r, H] by weights [..., I, H] gives [r, ..., I].
    `of_gate` are the rows [R, H] that gate multiplies, where they are others; `before` is what is done to gate and up
    in front of their biases.
    """

    x: Tensor
    gate: Tensor
    up: Tensor
    gate_bias: Tensor | None
    up_bias: Tensor | None
    act: Activation
    multiply: Callable[[Tensor, Tensor], Tensor] = times_weight
    of_gate: Tensor | None = None
    before: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] = (as_it_is, as_it_is)

    def at(self, rows: Any) -> Gated:
        """The same at some rows, by number or as a slice."""
        return replace(self, x=self.x[rows], of_gate=None if self.of_gate is None else self.of_gate[rows])

    def of_expert(self, expert: int, x: Tensor) -> Tensor:
        """[r, I] of one expert at rows x [r, H]."""
        gate, up = self.multiply(x, self.gate[expert]), self.multiply(x, self.up[expert])
        return self._activated(
            gate, up, *(None if one is None else one[expert] for one in (self.gate_bias, self.up_bias))
        )

    def inner(self, times: Tensor | None = None) -> Tensor:
        """[R, E, I]; each expert is given the rows so many times as large, [R, E]."""
        of_gate = self.x if self.of_gate is None else self.of_gate
        gate, up = self.multiply(of_gate, self.gate), self.multiply(self.x, self.up)
        if times is not None:
            gate, up = gate * times[..., None], up * times[..., None]
        return self._activated(gate, up, self.gate_bias, self.up_bias)

    def _activated(self, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None) -> Tensor:
        gate, up = (change(side) for change, side in zip(self.before, (gate, up), strict=True))
        gate, up = (side if bias is None else side + bias for side, bias in ((gate, gate_bias), (up, up_bias)))
        return self.act(gate, up)


Variant = Callable[[Gated], Gated]


def with_other(one: Gated, **changes: Any) -> Gated:
    """The same with other operands, by name."""
    return replace(one, **changes)


def of_earlier_rows(one: Gated) -> Iterator[tuple[str, Gated]]:
    """Gate, or up, of rows before, each with what it says."""
    for step in STEPS:
        if step < len(one.x):
            late = one.x.roll(step, 0)
            yield f"the gate of the row {step} before", replace(one, of_gate=late)
            yield f"the up of the row {step} before", replace(one, x=late, of_gate=one.x)
