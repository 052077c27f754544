"""A sum of weighted values that is kept in fewer bits from one tile of keys to the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from parity.references.products.attention.operands import Pass, Variant
from parity.references.products.attention.tiles import WIDTHS
from parity.references.products.product import NARROW, kept_in


def of_sums() -> Iterator[tuple[str, Variant]]:
    """Each with what it says."""
    for width in WIDTHS:
        for name, dtype in NARROW.items():
            says = f"key tiles of {width}: the sum of the values in {name} behind each"
            yield says, partial(_mixed, mixing=partial(_tiled, width=width, dtype=dtype))
            running = partial(_running, width=width, dtype=dtype)
            yield f"{says}, by the largest score so far", partial(_mixed, mixing=running)


def _mixed(one: Pass, mixing: partial[Tensor]) -> Pass:
    return replace(one, mixing=mixing)


def _tiled(scores: Tensor, shares: Tensor, values: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    total = torch.zeros(())
    for part, held in zip(shares.split(width, dim=-1), values.split(width, dim=1), strict=True):
        total = kept_in(total + part @ held, dtype)
    return total


def _running(scores: Tensor, shares: Tensor, values: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Exponentials below the largest score so far, their sum taken anew where it grows, divided last."""
    total, largest = torch.zeros(()), torch.full_like(scores[..., :1], float("-inf"))
    for part, held in zip(scores.split(width, dim=-1), values.split(width, dim=1), strict=True):
        grown = torch.maximum(largest, part.amax(-1, keepdim=True))
        kept = (largest - grown).exp().nan_to_num()
        total, largest = kept_in(total * kept + (part - grown).exp().nan_to_num() @ held, dtype), grown
    return total * shares.amax(-1, keepdim=True)
