"""What a gated MLP gives at some rows if its activation or its first weights were others, each change alone.

Inner activations of rows [R, H]: of each expert [R, E, I], or of one MLP as one expert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.references.products.activations import Activation, activations, plain_activations, swiglu
from parity.references.products.norms import behind_attention
from parity.references.products.product import (
    FLOATS,
    LEVELS,
    NARROW,
    Changed,
    Made,
    Product,
    entered,
    in_formats,
    in_steps,
    kept_in,
    linear,
)

TILE, HALF_TILE = 32, 16
"""Inputs behind the last whole tiles are what a loop over tiles forgets; MXFP4 blocks are as wide."""

RANKS = (2, 4)
"""Ranks for which a matrix may be cut."""


def times_weight(x: Tensor, weight: Tensor) -> Tensor:
    """Rows [r, H] by weights [..., I, H], [r, ..., I]."""
    return torch.einsum("rh,...ih->r...i", x, weight)


@dataclass(frozen=True)
class Gated:
    """The operands of the inner half: x [R, H], gate and up [E, I, H] with biases [E, I] (None where there are none).

    `act` makes the inner activation of gate and up; `multiply` x [r, H] by weights [..., I, H] gives [r, ..., I].
    """

    x: Tensor
    gate: Tensor
    up: Tensor
    gate_bias: Tensor | None
    up_bias: Tensor | None
    act: Activation
    multiply: Callable[[Tensor, Tensor], Tensor] = times_weight

    def at(self, rows: Any) -> Gated:
        """The same at some rows, by number or as a slice."""
        return replace(self, x=self.x[rows])

    def of_expert(self, expert: int, x: Tensor) -> Tensor:
        """[r, I] of one expert at rows x [r, H]."""
        sides = ((self.gate, self.gate_bias), (self.up, self.up_bias))
        gate, up = (self.multiply(x, side[expert]) + (0.0 if bias is None else bias[expert]) for side, bias in sides)
        return self.act(gate, up)

    def inner(self, times: Tensor | None = None) -> Tensor:
        """[R, E, I]; each expert is given the rows so many times as large, [R, E]."""
        gate, up = (self.multiply(self.x, weight) for weight in (self.gate, self.up))
        if times is not None:
            gate, up = gate * times[..., None], up * times[..., None]
        gate, up = (
            side if bias is None else side + bias for side, bias in ((gate, self.gate_bias), (up, self.up_bias))
        )
        return self.act(gate, up)


Variant = Callable[[Gated], Gated]


def variants(of: Gated, alpha: float = 1.0, limit: float = float("inf")) -> Iterator[tuple[str, Variant]]:
    """Each variant with what it says; `alpha` and `limit` are the activation's where it has them."""
    yield "gate and up exchanged", _exchanged
    for name, act in activations(alpha, limit) if limit < float("inf") else plain_activations():
        yield name, partial(with_other, act=act)
    if of.gate_bias is not None:
        yield "no bias of gate", partial(with_other, gate_bias=None)
        yield "no bias of up", partial(with_other, up_bias=None)
        yield "no bias of gate and up", partial(with_other, gate_bias=None, up_bias=None)
    for side in ("gate", "up"):
        yield f"neighbouring inputs of {side} exchanged", partial(_changed, sides=(side,), change=_neighbours)
    for says, step in _other_experts(len(of.gate)):
        for side in ("gate", "up", "gate_bias", "up_bias"):
            rolled = partial(_changed, sides=(side,), change=partial(_rolled, step=step))
            yield f"the {side.replace('_', ' ')} of {says}", rolled
        rolled = partial(_changed, sides=("gate", "up", "gate_bias", "up_bias"), change=partial(_rolled, step=step))
        yield f"gate, up and their biases of {says}", rolled
    for side in ("gate_bias", "up_bias") if of.gate_bias is not None else ():
        for first in range(TILE, of.gate.shape[1], TILE):
            cut = partial(_changed, sides=(side,), change=partial(_cut, first=first))
            yield f"the {side.replace('_', ' ')} from {first} on left out", cut
    for name, dtype in FLOATS.items():
        for says, sides in (("gate and up", ("gate", "up")), ("gate", ("gate",)), ("up", ("up",))):
            yield f"{says} in fp8 ({name})", partial(_changed, sides=sides, change=partial(_low, dtype=dtype))
    for says, rows in _inputs():
        yield f"the input of gate and up {says}", partial(_entering, rows=rows)
    for name, levels in LEVELS.items():
        for says, sides in (("gate and up", ("gate", "up")), ("gate", ("gate",)), ("up", ("up",))):
            by_row = partial(_in_steps_by_row, levels=levels)
            yield f"{says} in {name} by row", partial(_changed, sides=sides, change=by_row)
    for width in (HALF_TILE, TILE):
        for first in range(0, of.gate.shape[1] - width + 1, width):
            for says, bias in (("gate and up", False), ("gate, up and their biases", True)):
                swap = partial(_turned_in, some=slice(first, first + width), bias=bias)
                yield f"{says} exchanged in the inner columns {first} to {first + width - 1}", swap
    for ranks in RANKS:
        if of.gate.shape[1] % ranks == 0:
            yield f"gate and up, one matrix, cut for {ranks} ranks", partial(_cut_by_rank, ranks=ranks)
            if ranks > 2:  # of two both are the same
                yield f"gate and up of {ranks} ranks read as one matrix", partial(_cut_by_rank, ranks=ranks, back=True)
    for name, dtype in NARROW.items():
        yield f"gate and up rounded to {name} before they are multiplied", partial(_acted, low=dtype)
    for name, dtype in NARROW.items():
        for width in ACCUMULATED:
            if width < of.x.shape[1]:
                says = f"gate and up added up in {name} behind each tile of {width} inputs"
                yield says, partial(with_other, multiply=partial(_in_tiles, width=width, low=dtype))
    yield from _of_scales(of.x.shape[1])
    for name, low in in_formats():
        yield f"what gate and up give in {name}", partial(_given_in, low=low)
    for first in range(0, of.x.shape[1] - TILE, TILE):
        for side in ("gate", "up"):
            swap = partial(_changed, sides=(side,), change=partial(_blocks, first=first))
            yield f"inputs {first} to {first + TILE - 1} of {side} exchanged with the next {TILE}", swap
    for first in range(TILE, of.x.shape[1], TILE):
        for says, sides in (("gate and up", ("gate", "up")), ("gate", ("gate",)), ("up", ("up",))):
            cut = partial(_changed, sides=sides, change=partial(_cut, first=first))
            yield f"inputs of {says} from {first} on left out", cut


ACCUMULATED = (16, 32, 64, 128, 256)
"""Inputs behind which a kernel may round its sums."""

BLOCK, BLOCKS = 32, 12
"""Inputs of a block of MXFP4, and blocks up to which every one may have another one's scales."""


def _in_tiles(x: Tensor, weight: Tensor, width: int, low: torch.dtype) -> Tensor:
    total = torch.zeros(())
    for first in range(0, x.shape[1], width):
        some = slice(first, first + width)
        total = kept_in(total + times_weight(x[:, some], weight[..., some]), low)
    return total


def _of_scales(width: int) -> Iterator[tuple[str, Variant]]:
    """Blocks of inputs by the scales of others: all by those beside, or one by another's."""
    count = width // BLOCK
    orders = {f"the block {where}": [(at - step) % count for at in range(count)] for where, step in BESIDE.items()}
    for at in range(count) if count <= BLOCKS else ():
        for other in {*range(count)} - {at}:
            order = [*range(count)]
            order[at] = other
            orders[
                f"inputs {BLOCK * other} to {BLOCK * other + BLOCK - 1} for {BLOCK * at} to {BLOCK * at + BLOCK - 1}"
            ] = order
    for whose, order in orders.items() if width % BLOCK == 0 and count > 1 else ():
        for says, sides in (("gate and up", ("gate", "up")), ("gate", ("gate",)), ("up", ("up",))):
            change = partial(_by_other_scales, order=order)
            yield f"block scales of {says} are those of {whose}", partial(_changed, sides=sides, change=change)


BESIDE = {"before": 1, "behind": -1}
"""Steps to the blocks beside one."""


def _by_other_scales(weight: Tensor, order: Sequence[int]) -> Tensor:
    """Weights [E, I, H] whose blocks of inputs keep their codes and have the scales of others: powers of two."""
    blocks = weight.unflatten(-1, (-1, BLOCK))
    scales = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30).log2().floor().exp2()
    other: Tensor = (blocks / scales * scales[..., list(order), :]).flatten(-2)
    return other


def _inputs() -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Other rows [R, H] that enter."""
    yield from ((f"in {name}", low) for name, low in in_formats())
    for name, levels in LEVELS.items():
        yield f"in {name} by row", partial(_in_steps_by_row, levels=levels)
        yield f"in {name} by row, from bfloat16", partial(_in_steps_by_row, levels=levels, before=torch.bfloat16)


def _in_steps_by_row(x: Tensor, levels: int, before: torch.dtype = torch.float32) -> Tensor:
    held = kept_in(x, before)
    return in_steps(held, held.abs().amax(-1, keepdim=True).clamp(min=1e-30), levels)


def _entering(one: Gated, rows: Callable[[Tensor], Tensor]) -> Gated:
    return replace(one, x=rows(one.x))


def _other_experts(count: int) -> Iterator[tuple[str, int]]:
    """Experts of so many that may be taken for one: neighbours, and those of another tile or rank."""
    steps = dict.fromkeys(step for step in (1, 2, 4, count // 4, count // 2) if 0 < step < count)
    for step in steps:
        where = "expert" if step == 1 else f"expert {step}"
        yield f"the {where} before", step
        yield f"the {where} behind", -step


def with_other(one: Gated, **changes: Any) -> Gated:
    """The same with other operands, by name."""
    return replace(one, **changes)


def _exchanged(one: Gated) -> Gated:
    return replace(one, gate=one.up, up=one.gate, gate_bias=one.up_bias, up_bias=one.gate_bias)


def _turned_in(one: Gated, some: slice, bias: bool) -> Gated:
    """Gate and up exchanged in a run of inner columns, with their biases where there are some or without them."""
    changes = {}
    for name, other in (("gate", "up"), ("up", "gate"), ("gate_bias", "up_bias"), ("up_bias", "gate_bias")):
        held = getattr(one, name)
        if held is not None and (bias or not name.endswith("bias")):
            changes[name] = held.clone()
            changes[name][:, some] = getattr(one, other)[:, some]
    return with_other(one, **changes)


def _cut_by_rank(one: Gated, ranks: int, back: bool = False) -> Gated:
    """What stands for gate and up where their one matrix is cut in equal runs, each of which is halved; or `back`."""
    changes: dict[str, Tensor | None] = {}
    for gate, up in (("gate", "up"), ("gate_bias", "up_bias")):
        held = [getattr(one, side) for side in (gate, up)]
        if held[0] is not None:
            both = torch.cat(held, dim=1)
            shape = (2, ranks) if back else (ranks, 2)
            halves = both.unflatten(1, (*shape, -1)).transpose(1, 2).flatten(1, 3).chunk(2, dim=1)
            changes |= dict(zip((gate, up), halves, strict=True))
    return with_other(one, **changes)


def _given_in(one: Gated, low: Callable[[Tensor], Tensor]) -> Gated:
    return replace(one, act=lambda gate, up: low(one.act(gate, up)))


def _acted(one: Gated, low: torch.dtype) -> Gated:
    return replace(one, act=lambda gate, up: one.act(kept_in(gate, low), kept_in(up, low)))


def _changed(one: Gated, sides: Sequence[str], change: Callable[[Tensor], Tensor]) -> Gated:
    return with_other(one, **{side: change(getattr(one, side)) for side in sides})


def _neighbours(weight: Tensor) -> Tensor:
    exchanged: Tensor = weight.unflatten(2, (-1, 2)).flip(3).flatten(2)
    return exchanged


def _low(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.to(dtype).double()


def _blocks(weight: Tensor, first: int) -> Tensor:
    """Two neighbouring tiles of inputs exchanged."""
    middle, last = first + TILE, min(first + 2 * TILE, weight.shape[-1])
    order = [*range(first), *range(middle, last), *range(first, middle), *range(last, weight.shape[-1])]
    return weight[..., order]


def _rolled(weight: Tensor, step: int) -> Tensor:
    return weight.roll(step, 0)


def _cut(weight: Tensor, first: int) -> Tensor:
    cut = weight.clone()
    cut[..., first:] = 0
    return cut


def mlp(loop: Any, side: str, number: int, layer: Any, stack: ExitStack) -> Made:
    """A gated MLP's inner activation by its down projection."""
    held = layer.mlp
    rows, seen = entered(held, stack), entered(held.down_proj, stack)
    before = behind_attention(layer, (), stack)

    def made() -> list[Product]:
        gate, up = (side.weight.detach().double()[None] for side in (held.gate_proj, held.up_proj))
        gated = Gated(torch.cat(rows).double(), gate, up, None, None, swiglu)

        def others() -> Iterator[tuple[str, Changed]]:
            for says, variant in variants(gated):
                yield says, partial(_inner_of_one, gated, variant)
            for says, other in before()[0].others():
                yield f"{says} for gate and up", partial(_inner_of_rows, gated, other)

        return linear(held.down_proj, torch.cat(seen), (), others)

    return made


def _inner_of_one(gated: Gated, variant: Variant, rows: Any) -> Tensor:
    return variant(gated.at(rows)).inner()[:, 0]


def _inner_of_rows(gated: Gated, made: Changed, rows: Any) -> Tensor:
    return replace(gated, x=torch.from_numpy(made(rows))).inner()[:, 0]
