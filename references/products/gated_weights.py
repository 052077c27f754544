"""The first weights of a gated MLP in fewer bits, by other codes or by other block scales, each change alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import permutations

import torch
from torch import Tensor

from parity.block_formats import LEVELS, MISREAD, nearest_codes
from parity.references.products.gated import Gated, Variant, with_other
from parity.references.products.product import FLOATS, in_block_formats, in_steps, kept_in

SIDES: dict[str, tuple[str, ...]] = {"gate and up": ("gate", "up"), "gate": ("gate",), "up": ("up",)}
"""What is changed alike, by what it is called."""

CODED = 1 << 24
"""Numbers of a weight whose codes are told: of more it takes minutes, and several copies."""

BLOCK, BLOCKS = 32, 12
"""Inputs of a block of MXFP4, and blocks up to which every one may have another one's scales."""

SWIZZLED = (16, 32, 64, 128)
"""Outputs whose scales a kernel may want in an order of its own."""


BESIDE = {"before": 1, "behind": -1}
"""Steps to the blocks, or experts, beside one."""


def in_fewer_bits() -> Iterator[tuple[str, Variant]]:
    """Formats of eight bits, and those with a scale by block."""
    for name, dtype in FLOATS.items():
        for says, sides in SIDES.items():
            yield f"{says} in fp8 ({name})", partial(changed, sides=sides, change=partial(_low, dtype=dtype))
    for name, low in in_block_formats():
        for says, sides in SIDES.items():
            yield f"{says} in {name}", partial(changed, sides=sides, change=low)


def in_steps_of_rows() -> Iterator[tuple[str, Variant]]:
    """Integers with a scale by row."""
    for name, levels in LEVELS.items():
        for says, sides in SIDES.items():
            by_row = partial(in_steps_by_row, levels=levels)
            yield f"{says} in {name} by row", partial(changed, sides=sides, change=by_row)


def of_codes(of: Gated) -> Iterator[tuple[str, Variant]]:
    """Codes of MXFP4 that are read as others."""
    for code, others in MISREAD.items() if of.gate.numel() <= CODED else ():
        for says, sides in SIDES.items():
            for other in others:
                read = partial(changed, sides=sides, change=partial(_misread, code=code, other=other))
                yield f"numbers of {says} that MXFP4 has as {code:g} read as {other:g}", read


def of_scales(width: int, outputs: int, experts: int) -> Iterator[tuple[str, Variant]]:
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
    for says, sides in SIDES.items():
        for whose, change in changes.items():
            yield f"block scales of {says} are those of {whose}", partial(changed, sides=sides, change=change)


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


def changed(one: Gated, sides: Sequence[str], change: Callable[[Tensor], Tensor]) -> Gated:
    """Some of its weights and biases changed alike."""
    return with_other(one, **{side: change(getattr(one, side)) for side in sides})


def _low(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.to(dtype).double()


def in_steps_by_row(x: Tensor, levels: int, before: torch.dtype = torch.float32) -> Tensor:
    """Numbers in whole steps of a scale of their row, in a format before."""
    held = kept_in(x, before)
    return in_steps(held, held.abs().amax(-1, keepdim=True).clamp(min=1e-30), levels)


def _misread(weight: Tensor, code: float, other: float) -> Tensor:
    return torch.where(torch.from_numpy(nearest_codes(weight.numpy()) == code), weight * (other / code), weight)
