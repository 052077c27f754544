"""What a gated MLP gives at some rows if its activation or its first weights were others, each change alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations

import torch
from torch import Tensor

from parity.block_formats import LEVELS, MISREAD, nearest_codes
from parity.references.products.activations import activations, clamped_swiglu, plain_activations
from parity.references.products.gated import Gated, Variant, times_weight, with_other
from parity.references.products.product import (
    FLOATS,
    NARROW,
    in_block_formats,
    in_formats,
    in_steps,
    kept_in,
)

TILE, HALF_TILE = 32, 16
"""Inputs behind the last whole tiles are what a loop over tiles forgets; MXFP4 blocks are as wide."""

CODED = 1 << 24
"""Numbers of a weight whose codes are told: of more it takes minutes, and several copies."""

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
    for name, low in in_block_formats():
        for says, sides in (("gate and up", ("gate", "up")), ("gate", ("gate",)), ("up", ("up",))):
            yield f"{says} in {name}", partial(_changed, sides=sides, change=low)
    for says, order in _orders(of.gate.shape[1]):
        for what, sides in (("gate", ("gate",)), ("up", ("up",)), ("gate and up", ("gate", "up"))):
            biases = tuple(f"{side}_bias" for side in sides) if of.gate_bias is not None else ()
            change = partial(_reordered, order=order)
            yield f"inner columns of {what} {says}", partial(_changed, sides=(*sides, *biases), change=change)
            if biases:
                yield f"inner columns of {what}, but for biases, {says}", partial(_changed, sides=sides, change=change)
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
    for code, others in MISREAD.items() if of.gate.numel() <= CODED else ():
        for says, sides in (("gate and up", ("gate", "up")), ("gate", ("gate",)), ("up", ("up",))):
            for other in others:
                read = partial(_changed, sides=sides, change=partial(_misread, code=code, other=other))
                yield f"numbers of {says} that MXFP4 has as {code:g} read as {other:g}", read
    yield from _of_scales(of.x.shape[1], of.gate.shape[1], len(of.gate))
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


def _of_scales(width: int, outputs: int, experts: int) -> Iterator[tuple[str, Variant]]:
    """Block scales of others: of the blocks beside, of one block in another's place, of the same block of an expert or
    of another output."""
    count = width // BLOCK
    if width % BLOCK:
        return
    orders = {f"the block {where}": [(at - step) % count for at in range(count)] for where, step in BESIDE.items()}
    for at, other in permutations(range(count), 2) if count <= BLOCKS else ():
        taken, own = (f"{BLOCK * one} to {BLOCK * one + BLOCK - 1}" for one in (other, at))
        orders[f"inputs {taken} for {own}"] = [other if one == at else one for one in range(count)]
    changes = {whose: partial(_by_other_scales, order=order) for whose, order in orders.items() if count > 1}
    for whose, those in _scales_of_experts(experts):
        changes[whose] = partial(_by_other_scales, order=range(count), experts=those)
    for whose, rows in _other_outputs(outputs):
        changes[whose] = partial(_by_other_scales, order=range(count), outputs=rows)
    for says, sides in (("gate and up", ("gate", "up")), ("gate", ("gate",)), ("up", ("up",))):
        for whose, change in changes.items():
            yield f"block scales of {says} are those of {whose}", partial(_changed, sides=sides, change=change)


def _scales_of_experts(count: int) -> Iterator[tuple[str, list[int]]]:
    """Experts whose scales may be taken for each of so many, by what they are called."""
    if count > 1:
        yield "expert 0", [0] * count
        for where, step in BESIDE.items():
            yield f"the expert {where}", [(one - step) % count for one in range(count)]


def _other_outputs(count: int) -> Iterator[tuple[str, Tensor]]:
    """Outputs whose scales may be taken for each of so many: neighbours, and tiles in the order that a kernel wants."""
    places = torch.arange(count)
    for where, step in BESIDE.items():
        yield f"the output {where}", places.roll(step)
    for tile in (size for size in SWIZZLED if count % size == 0):
        for rows in (2**power for power in range(1, tile.bit_length() - 1)):
            order = places.view(-1, rows, tile // rows).transpose(1, 2).flatten()
            yield f"outputs in tiles of {tile}, each transposed ({rows} by {tile // rows})", order


SWIZZLED = (16, 32, 64, 128)
"""Outputs whose scales a kernel may want in an order of its own."""


BESIDE = {"before": 1, "behind": -1}
"""Steps to the blocks, or experts, beside one."""


def _by_other_scales(
    weight: Tensor, order: Sequence[int], experts: Sequence[int] | None = None, outputs: Tensor | None = None
) -> Tensor:
    """Weights [E, I, H] whose blocks of inputs keep their codes and have the scales of others: powers of two."""
    blocks = weight.unflatten(-1, (-1, BLOCK))
    scales = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30).log2().floor().exp2()
    taken = scales if experts is None else scales[list(experts)]
    taken = taken if outputs is None else taken[:, outputs]
    other: Tensor = (blocks / scales * taken[..., list(order), :]).flatten(-2)
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


def _misread(weight: Tensor, code: float, other: float) -> Tensor:
    return torch.where(torch.from_numpy(nearest_codes(weight.numpy()) == code), weight * (other / code), weight)


def _cut(weight: Tensor, first: int) -> Tensor:
    cut = weight.clone()
    cut[..., first:] = 0
    return cut
