"""Activations of a gated MLP: the right ones, and what a kernel may take for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from parity.references.products.product import NARROW, kept_in

Activation = Callable[[Tensor, Tensor], Tensor]
"""From gate and up, of one shape, to the inner activation."""


def clamped_swiglu(alpha: float, limit: float) -> Activation:
    """gpt-oss's: (up + 1) gate sigmoid(alpha gate), both clamped."""

    def act(gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (up + 1) * gate * torch.sigmoid(alpha * gate)

    return act


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """A Llama layer's."""
    return F.silu(gate) * up


LIFTS = (-2.0, -1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
"""What may be added to up as well: the one that it is lifted by, folded into its bias so often."""


EDGES, REACHES, HARD_SWISH = (2, 3, 4, 5, 6, 8), (2.0, 2.5, 3.0, 4.0), 3.0
"""Where a table of the sigmoid may end, how far a straight line may stand for it, and where a hard swish's does."""


def activations(alpha: float, limit: float) -> Iterator[tuple[str, Activation]]:
    """Other activations of gate and up [R, E, I] of a clamped SwiGLU, each with what it says."""
    inf = float("inf")
    right = clamped_swiglu(alpha, limit)
    yield "no clamp", clamped_swiglu(alpha, inf)
    for other in (0.0, 1.0, limit / 2, limit * 2):
        yield f"clamps at {other:g}", clamped_swiglu(alpha, other)
    yield "the sigmoid without its gate", lambda gate, up: right(gate, up) / gate.clamp(max=limit)
    yield "no up", lambda gate, up: right(gate, torch.zeros_like(up))
    yield "no clamp of up", lambda gate, up: (up + 1) * right(gate, torch.zeros_like(up))
    yield "a plain SiLU for the sigmoid's slope", clamped_swiglu(1.0, limit)
    yield "a sigmoid that is one half throughout, as of a slope of 0", clamped_swiglu(0.0, limit)
    for slope in (0.5, 1.5, 2.0, -alpha):
        yield f"a slope of {slope:g} in the sigmoid", clamped_swiglu(slope, limit)

    def gated(gate: Tensor, up: Tensor, sigmoid: Callable[[Tensor], Tensor] = torch.sigmoid) -> Tensor:
        return up * gate * sigmoid(alpha * gate)

    def clamped(side: Tensor) -> Tensor:
        return side.clamp(-limit, limit)

    def gated_low(gate: Tensor, up: Tensor, low: Callable[[Tensor], Tensor]) -> Tensor:
        return (clamped(up) + 1) * low(gated(gate.clamp(max=limit), torch.ones_like(up)))

    def cut_off(gate: Tensor, up: Tensor, cut: Callable[[Tensor], Tensor]) -> Tensor:
        return gated(gate.clamp(max=limit), clamped(up) + 1, cut)

    def lifted(gate: Tensor, up: Tensor, more: float) -> Tensor:
        return right(gate, up + more)

    yield "one added to up before its clamp", lambda gate, up: gated(gate.clamp(max=limit), clamped(up + 1))
    for lift in LIFTS:
        yield f"up larger by {lift:g} before its clamp", partial(lifted, more=lift)
    yield "the clamp of gate on both sides", lambda gate, up: gated(clamped(gate), clamped(up) + 1)
    yield "the clamp of up above alone", lambda gate, up: gated(gate.clamp(max=limit), up.clamp(max=limit) + 1)
    yield "no clamp of gate", lambda gate, up: gated(gate, clamped(up) + 1)
    yield "the clamp on what gate and up make, in their place", lambda gate, up: clamped(gated(gate, up + 1))
    yield "the clamp on what gate and up make, above alone", lambda gate, up: gated(gate, up + 1).clamp(max=limit)
    yield "the clamp on what gate and up make as well", lambda gate, up: clamped(right(gate, up))
    yield (
        "the clamp of gate behind its sigmoid",
        lambda gate, up: (clamped(up) + 1) * gated(gate, torch.ones_like(up)).clamp(max=limit),
    )
    yield (
        "gate and up rounded to bfloat16 behind the clamp",
        lambda gate, up: gated(
            kept_in(gate.clamp(max=limit), torch.bfloat16), kept_in(clamped(up), torch.bfloat16) + 1
        ),
    )
    for name, dtype in NARROW.items():
        low = partial(kept_in, dtype=dtype)
        yield f"the sigmoid of gate in {name}", partial(cut_off, cut=partial(_sigmoid_low, low=low))
        yield f"the sigmoid's argument in {name}", partial(cut_off, cut=partial(_sigmoid_of_low, low=low))
        yield f"gate by its sigmoid in {name} before it meets up", partial(gated_low, low=low)
    for edge in EDGES:
        for more, above in ((f" and 1 above {edge}", True), ("", False)):
            says = f"a sigmoid that is 0 below -{edge}{more}"
            yield says, partial(cut_off, cut=partial(_cut_sigmoid, edge=float(edge), above=above))
    for reach in REACHES:
        says = f"a sigmoid that is straight from -{reach:g} to {reach:g}"
        yield says, partial(cut_off, cut=partial(_hard, edge=reach))


def _sigmoid_low(x: Tensor, low: Callable[[Tensor], Tensor]) -> Tensor:
    return low(torch.sigmoid(x))


def _sigmoid_of_low(x: Tensor, low: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.sigmoid(low(x))


def _hard(x: Tensor, edge: float) -> Tensor:
    """A straight line in the sigmoid's place."""
    return (x / (2 * edge) + 0.5).clamp(0, 1)


def _cut_sigmoid(x: Tensor, edge: float, above: bool = True) -> Tensor:
    """A table's sigmoid, which ends."""
    shares = torch.where(x < -edge, 0.0, torch.sigmoid(x))
    return torch.where(x > edge, 1.0, shares) if above else shares


def _in_between(gate: Tensor, up: Tensor, low: Callable[[Tensor], Tensor]) -> Tensor:
    return low(F.silu(gate)) * up


def _by_sigmoid(gate: Tensor, up: Tensor, sigmoid: Callable[[Tensor], Tensor]) -> Tensor:
    return gate * sigmoid(gate) * up


def _sigmoid_in(gate: Tensor, up: Tensor, low: Callable[[Tensor], Tensor]) -> Tensor:
    return gate * _sigmoid_low(gate, low) * up


def plain_activations() -> Iterator[tuple[str, Activation]]:
    """Other activations of a Llama layer's, each with what it says."""
    for name, dtype in NARROW.items():
        low = partial(kept_in, dtype=dtype)
        yield f"SiLU of gate in {name} before it meets up", partial(_in_between, low=low)
        yield f"the sigmoid of gate in {name}", partial(_sigmoid_in, low=low)
    for reach in REACHES:
        says = (
            "a hard swish for SiLU"
            if reach == HARD_SWISH
            else f"a sigmoid that is straight from -{reach:g} to {reach:g}"
        )
        yield says, partial(_by_sigmoid, sigmoid=partial(_hard, edge=reach))
    for edge in EDGES:
        for more, above in ((f" and 1 above {edge}", True), ("", False)):
            cut = partial(_cut_sigmoid, edge=float(edge), above=above)
            yield f"a sigmoid that is 0 below -{edge}{more}", partial(_by_sigmoid, sigmoid=cut)
    yield "a tanh for SiLU", lambda gate, up: torch.tanh(gate) * up
    yield "ReLU squared for SiLU", lambda gate, up: F.relu(gate) ** 2 * up
    yield "GELU for SiLU", lambda gate, up: F.gelu(gate) * up
    yield "GELU's tanh form for SiLU", lambda gate, up: F.gelu(gate, approximate="tanh") * up
    yield "GELU's sigmoid form for SiLU", lambda gate, up: gate * torch.sigmoid(1.702 * gate) * up
    yield "ReLU for SiLU", lambda gate, up: F.relu(gate) * up
    yield "the sigmoid without its gate", lambda gate, up: torch.sigmoid(gate) * up
    yield "no activation of gate", lambda gate, up: gate * up
    yield "SiLU of gate times up", lambda gate, up: F.silu(gate * up)
    yield "SiLU of both", lambda gate, up: F.silu(gate) * F.silu(up)
    yield "no up", lambda gate, up: F.silu(gate)
