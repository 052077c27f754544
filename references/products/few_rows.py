"""What experts give at some rows if the kernel for experts of few rows of a pass were wrong, and the other right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from parity.references.products.gated import Gated, with_other

FEW = (1, 2, 4)
"""Rows of a pass up to which an expert may be run by a kernel of its own: a product of a vector, or a short tile."""

TILE = 32
"""Inputs behind the last whole tiles are what such a kernel forgets."""

Weighed = tuple[Tensor, Tensor, Tensor]
"""Inner activations [R, E, I], and the shares by which these and the down biases count, [R, E] each."""


def of_few_rows(gated: Gated, right: Tensor, shares: Sequence[Tensor]) -> Iterator[tuple[str, Weighed]]:
    """Each with what it says.

    Args:
        right: the inner activations as they should be, [R, E, I].
        shares: of each pass, [rows, E].
    """
    share = torch.cat(list(shares))
    loads = torch.cat([(one > 0).sum(0, keepdim=True).expand_as(one) for one in shares])
    for few in FEW:
        some = (loads <= few) & (share > 0)
        whose = f"of experts that run {few} row{'s' * (few > 1)} of a pass or fewer"
        if not some.any():
            continue
        for says, other in _inner(gated, right):
            yield f"{says} {whose}", (torch.where(some[..., None], other, right), share, share)
        yield f"no bias of down {whose}", (right, share, share * ~some)


def _inner(gated: Gated, right: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Other inner activations [R, E, I], whatever an expert runs."""
    for first in range(TILE, right.shape[-1], TILE):
        cut = right.clone()
        cut[..., first:] = 0
        yield f"inputs of down from {first} on left out", cut
    if gated.gate_bias is not None:
        yield "no bias of gate", with_other(gated, gate_bias=None).inner()
        yield "no bias of up", with_other(gated, up_bias=None).inner()
        yield "no bias of gate and up", with_other(gated, gate_bias=None, up_bias=None).inner()
