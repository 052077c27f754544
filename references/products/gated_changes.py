"""What a gated MLP gives at some rows if its activation or its first weights were others, each change alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from parity.block_formats import LEVELS
from parity.references.products.activations import activations, clamped_swiglu, plain_activations
from parity.references.products.gated import Gated, Variant, times_weight, with_other
from parity.references.products.gated_weights import (
    SIDES,
    changed,
    in_fewer_bits,
    in_steps_by_row,
    in_steps_of_rows,
    of_codes,
    of_scales,
)
from parity.references.products.product import (
    NARROW,
    in_formats,
    kept_in,
)

TILE, HALF_TILE = 32, 16
"""Inputs behind the last whole tiles are what a loop over tiles forgets; MXFP4 blocks are as wide."""

RANKS = (2, 4)
"""Ranks for which a matrix may be cut."""


def variants(of: Gated, alpha: float = 1.0, limit: float = float("inf")) -> Iterator[tuple[str, Variant]]:
    """Each variant with what it says; `alpha` and `limit` are the activation's where it has them."""
    yield "gate and up exchanged", _exchanged
    for name, act in activations(alpha, limit) if limit < float("inf") else plain_activations():
        yield name, partial(with_other, act=act)
    if of.gate_bias is not None:
        yield "no bias of gate", partial(with_other, gate_bias=None)
        yield "no bias of up", partial(with_other, up_bias=None)
        yield "no bias of gate and up", partial(with_other, gate_bias=None, up_bias=None)
        if limit < float("inf"):
            clamps = partial(torch.clamp, max=limit), partial(torch.clamp, min=-limit, max=limit)
            unclamped = clamped_swiglu(alpha, float("inf"))
            yield "biases of gate and up behind the clamp", partial(with_other, before=clamps, act=unclamped)
    for side in ("gate", "up"):
        yield f"neighbouring inputs of {side} exchanged", partial(changed, sides=(side,), change=_neighbours)
    for says, step in _other_experts(len(of.gate)):
        for side in ("gate", "up", "gate_bias", "up_bias"):
            rolled = partial(changed, sides=(side,), change=partial(_rolled, step=step))
            yield f"the {side.replace('_', ' ')} of {says}", rolled
        rolled = partial(changed, sides=("gate", "up", "gate_bias", "up_bias"), change=partial(_rolled, step=step))
        yield f"gate, up and their biases of {says}", rolled
    for side in ("gate_bias", "up_bias") if of.gate_bias is not None else ():
        for first in range(TILE, of.gate.shape[1], TILE):
            cut = partial(changed, sides=(side,), change=partial(_cut, first=first))
            yield f"the {side.replace('_', ' ')} from {first} on left out", cut
    yield from in_fewer_bits()
    for says, order in _orders(of.gate.shape[1]):
        for what, sides in SIDES.items():
            biases = tuple(f"{side}_bias" for side in sides) if of.gate_bias is not None else ()
            change = partial(_reordered, order=order)
            yield f"inner columns of {what} {says}", partial(changed, sides=(*sides, *biases), change=change)
            if biases:
                yield f"inner columns of {what}, but for biases, {says}", partial(changed, sides=sides, change=change)
    for says, rows in _inputs():
        yield f"the input of gate and up {says}", partial(_entering, rows=rows)
    yield from in_steps_of_rows()
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
    one_by_one = of.gate.shape[1]
    yield "gate and up, in turns, read as halves", partial(_cut_by_rank, ranks=one_by_one, back=True)
    yield "gate and up, halves, read in turns", partial(_cut_by_rank, ranks=one_by_one)
    for name, dtype in NARROW.items():
        yield f"gate and up rounded to {name} before they are multiplied", partial(_acted, low=dtype)
    for name, dtype in NARROW.items():
        for width in ACCUMULATED:
            if width < of.x.shape[1]:
                says = f"gate and up added up in {name} behind each tile of {width} inputs"
                yield says, partial(with_other, multiply=partial(_in_tiles, width=width, low=dtype))
    yield from of_codes(of)
    yield from of_scales(of.x.shape[1], of.gate.shape[1], len(of.gate))
    for name, low in in_formats():
        yield f"what gate and up give in {name}", partial(_given_in, low=low)
    for first in range(0, of.x.shape[1] - TILE, TILE):
        for side in ("gate", "up"):
            swap = partial(changed, sides=(side,), change=partial(_blocks, first=first))
            yield f"inputs {first} to {first + TILE - 1} of {side} exchanged with the next {TILE}", swap
    for first in range(TILE, of.x.shape[1], TILE):
        for says, sides in SIDES.items():
            cut = partial(changed, sides=sides, change=partial(_cut, first=first))
            yield f"inputs of {says} from {first} on left out", cut


ACCUMULATED = (16, 32, 64, 128, 256)
"""Inputs behind which a kernel may round its sums."""


def _in_tiles(x: Tensor, weight: Tensor, width: int, low: torch.dtype) -> Tensor:
    total = torch.zeros(())
    for first in range(0, x.shape[1], width):
        some = slice(first, first + width)
        total = kept_in(total + times_weight(x[:, some], weight[..., some]), low)
    return total


def _inputs() -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Other rows [R, H] that enter."""
    yield from ((f"in {name}", low) for name, low in in_formats())
    for name, levels in LEVELS.items():
        yield f"in {name} by row", partial(in_steps_by_row, levels=levels)
        yield f"in {name} by row, from bfloat16", partial(in_steps_by_row, levels=levels, before=torch.bfloat16)


def _entering(one: Gated, rows: Callable[[Tensor], Tensor]) -> Gated:
    return replace(one, x=rows(one.x))


def _other_experts(count: int) -> Iterator[tuple[str, int]]:
    """Experts of so many that may be taken for one: neighbours, and those of another tile or rank."""
    steps = dict.fromkeys(step for step in (1, 2, 4, count // 4, count // 2) if 0 < step < count)
    for step in steps:
        where = "expert" if step == 1 else f"expert {step}"
        yield f"the {where} before", step
        yield f"the {where} behind", -step


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


def _neighbours(weight: Tensor) -> Tensor:
    exchanged: Tensor = weight.unflatten(2, (-1, 2)).flip(3).flatten(2)
    return exchanged


def _blocks(weight: Tensor, first: int) -> Tensor:
    """Two neighbouring tiles of inputs exchanged."""
    middle, last = first + TILE, min(first + 2 * TILE, weight.shape[-1])
    order = [*range(first), *range(middle, last), *range(first, middle), *range(last, weight.shape[-1])]
    return weight[..., order]


def _rolled(weight: Tensor, step: int) -> Tensor:
    return weight.roll(step, 0)


def _orders(width: int) -> Iterator[tuple[str, Tensor]]:
    """Orders of so many inner columns."""
    places = torch.arange(width)
    yield "in reverse", places.flip(0)
    yield "one before", places.roll(1)
    yield "one behind", places.roll(-1)
    if width % 2 == 0:
        yield "with their halves exchanged", places.roll(width // 2)
        yield "with neighbours exchanged", places ^ 1
        yield "with even ones before odd ones", torch.cat((places[0::2], places[1::2]))
        yield "of which the halves take turns", places.view(2, -1).T.flatten()
        yield "of which the first half stands twice", places % (width // 2)
        yield "of which the second half stands twice", places % (width // 2) + width // 2
    for tile in REPEATED:
        if tile < width:
            yield f"of which the first {tile} stand in every tile of {tile}", places % tile
            yield (
                f"of which those from {tile} on are those {tile} before",
                torch.where(places < tile, places, places - tile),
            )


REPEATED = (16, 32, 64, 128, 256)
"""Columns of a tile whose pointer a kernel may not move on."""


def _reordered(held: Tensor, order: Tensor) -> Tensor:
    """Weights [E, I, H] or biases [E, I] with their inner columns in an order."""
    return held[:, order]


def _cut(weight: Tensor, first: int) -> Tensor:
    cut = weight.clone()
    cut[..., first:] = 0
    return cut
