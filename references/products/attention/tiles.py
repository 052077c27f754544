"""A softmax that goes over tiles of keys, and what it forgets between two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from parity.references.products.attention.operands import Pass, Variant, softmax

WIDTHS = (16, 32, 64, 128)
"""Keys of a tile."""


def of_tiles() -> Iterator[tuple[str, Variant]]:
    """Each with what it says."""
    for width in WIDTHS:
        for says, shared in (
            ("values and sum not rescaled from tile to tile", partial(_running, values=True, total=True)),
            ("values not rescaled from tile to tile", partial(_running, values=True, total=False)),
            ("the sum not rescaled from tile to tile", partial(_running, values=False, total=True)),
            ("each tile with a softmax of its own, added up", partial(_apart, mean=False)),
            ("each tile with a softmax of its own, their mean", partial(_apart, mean=True)),
        ):
            yield f"key tiles of {width}: {says}", partial(_with, shared=partial(shared, width=width))
        yield f"keys behind the last whole tile of {width} are not seen", partial(_whole_tiles, width=width)
        yield f"the first tile of {width} keys is not seen", partial(_without_first, width=width)
    yield "the sink not shifted by the largest score", partial(_with, shared=_sink_not_shifted)


def _with(one: Pass, shared: Callable[[Tensor, Tensor | None], Tensor]) -> Pass:
    return replace(one, shared=shared)


def _running(scores: Tensor, sinks: Tensor | None, width: int, values: bool, total: bool) -> Tensor:
    """Each tile's exponentials by the largest score so far, in what is mixed, in its sum, or in both."""
    last = scores.amax(-1, keepdim=True)
    so_far = scores.cummax(-1).values
    ends = (
        torch.arange(scores.shape[-1]).div(width, rounding_mode="floor").add(1).mul(width).clamp(max=scores.shape[-1])
    )
    tile = so_far[..., ends - 1]
    seen = scores.isfinite()
    forgot = torch.where(seen, (scores - tile).exp(), 0.0)
    right = torch.where(seen, (scores - last).exp(), 0.0)
    sums = (forgot if total else right).sum(-1, keepdim=True)
    if sinks is not None:
        sums = sums + (sinks - last).exp()
    return ((forgot if values else right) / sums).nan_to_num(posinf=0.0)


def _apart(scores: Tensor, sinks: Tensor | None, width: int, mean: bool) -> Tensor:
    """A softmax of each tile."""
    tiles = [softmax(tile, sinks) for tile in scores.split(width, dim=-1)]
    seen = sum((tile.sum(-1, keepdim=True) > 0).double() for tile in tiles)
    shares = torch.cat(tiles, dim=-1)
    return shares / torch.as_tensor(seen).clamp(min=1) if mean else shares


def _sink_not_shifted(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The sink's exponential as it is, beside exponentials below the largest score."""
    last = scores.amax(-1, keepdim=True)
    shares = torch.where(scores.isfinite(), (scores - last).exp(), 0.0)
    extra = sinks.exp() if sinks is not None else torch.zeros(())
    return (shares / (shares.sum(-1, keepdim=True) + extra)).nan_to_num()


def _whole_tiles(one: Pass, width: int) -> Pass:
    keys = one.seen.shape[1]
    return replace(one, seen=one.seen & (torch.arange(keys) < keys // width * width))


def _without_first(one: Pass, width: int) -> Pass:
    return replace(one, seen=one.seen & (torch.arange(one.seen.shape[1]) >= width))
