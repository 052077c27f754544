"""A softmax that goes over tiles of keys, and what it forgets between two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import log

import torch
from torch import Tensor

from parity.references.products.attention.operands import Pass, Variant, softmax

WIDTHS = (16, 32, 64, 128)
"""Keys of a tile."""

BASES = {"log2(e) times as large, as of a power of two": 1 / log(2), "ln(2) times as large": log(2)}
"""Logarithms and exponentials of different bases."""

Times = Callable[[Tensor, Tensor, Tensor], Tensor]
"""How often each key counts, of its tile, the last tile of its row and whether the tile is full to the row's end."""


def _once(tile: Tensor, last: Tensor, whole: Tensor) -> Tensor:
    return torch.ones_like(whole)


def _twice(which: Callable[[Tensor, Tensor], Tensor]) -> Times:
    return lambda tile, last, whole: 1.0 + which(tile, last)


def _none(which: Callable[[Tensor, Tensor], Tensor]) -> Times:
    return lambda tile, last, whole: (~which(tile, last)).double()


def _whole(tile: Tensor, last: Tensor, whole: Tensor) -> Tensor:
    return whole


FIRST, SECOND, LAST = (
    lambda tile, last: (tile == 0) & (last >= 0),
    lambda tile, last: (tile == 1) & (last >= 0),
    lambda tile, last: tile == last,
)
NAMED = {"the first": FIRST, "the second": SECOND, "the last": LAST}
COUNTED = [
    ("keys behind the last whole tile are not seen", _whole, _whole),
    *((f"{name} is counted twice", _twice(which), _twice(which)) for name, which in NAMED.items()),
    *((f"the values of {name} are counted twice", _twice(which), _once) for name, which in NAMED.items()),
    *((f"{name} is left out", _none(which), _none(which)) for name, which in NAMED.items()),
    *((f"the values of {name} are left out", _none(which), _once) for name, which in NAMED.items()),
    *((f"{name} is left out of the sum", _once, _none(which)) for name, which in NAMED.items()),
    ("the sum is of the first alone", _once, _none(lambda tile, last: tile > 0 * last)),
    ("the sum is of the last alone", _once, _none(lambda tile, last: tile < last)),
    ("the values are of the last alone", _none(lambda tile, last: tile < last), _once),
]
"""What tiles count: (what it says, in what is mixed, in the sum)."""


def of_tiles() -> Iterator[tuple[str, Variant]]:
    """Each with what it says."""
    for width in WIDTHS:
        for says, shared in (
            ("values and sum not rescaled from tile to tile", partial(_running, values=True, total=True)),
            ("values not rescaled from tile to tile", partial(_running, values=True, total=False)),
            ("the sum not rescaled from tile to tile", partial(_running, values=False, total=True)),
            ("values and sum not rescaled from the sink on", partial(_running, values=True, total=True, sink=True)),
            ("values not rescaled from the sink on", partial(_running, values=True, total=False, sink=True)),
            ("values of the first not rescaled", partial(_running, values=True, total=False, tiles=1)),
            ("values and sum of the first not rescaled", partial(_running, values=True, total=True, tiles=1)),
            ("each tile with a softmax of its own, added up", partial(_apart, mean=False)),
            ("each tile with a softmax of its own, their mean", partial(_apart, mean=True)),
        ):
            yield f"key tiles of {width}: {says}", partial(_with, shared=partial(shared, width=width))
        yield f"key tiles of {width}: the sink is counted in each", partial(_with, shared=partial(_sinks, width=width))
        for says, among in (("", False), (", by the largest of its own and the first", True)):
            begun = partial(_sink_of_the_first, width=width, among=among)
            yield f"key tiles of {width}: the sink not rescaled from tile to tile{says}", partial(_with, shared=begun)
        for says, times in BASES.items():
            merged = partial(_merged, width=width, times=times)
            yield f"key tiles of {width}: merged by sums whose logarithm is {says}", partial(_with, shared=merged)
        for says, of_values, of_sum in COUNTED:
            counted = partial(_counted, width=width, of_values=of_values, of_sum=of_sum)
            yield f"key tiles of {width}: {says}", partial(_with, shared=counted)
    for says, among in (("score", False), ("of the scores and itself", True)):
        alone = partial(_sink_not_shifted, among=among)
        yield f"the sink not shifted by the largest {says}", partial(_with, shared=alone)
    for says, times in BASES.items():
        beside = partial(_sink_beside, times=times)
        yield f"the sink beside a sum whose logarithm is {says}", partial(_with, shared=beside)
    yield "the sink beside scores less their mean", partial(_with, shared=_less_their_mean)


def _with(one: Pass, shared: Callable[[Tensor, Tensor | None], Tensor]) -> Pass:
    return replace(one, shared=shared)


def _running(
    scores: Tensor,
    sinks: Tensor | None,
    width: int,
    values: bool,
    total: bool,
    tiles: int | None = None,
    sink: bool = False,
) -> Tensor:
    """Exponentials by the largest score so far in what is mixed, its sum, or both: of the first tiles, or of all.

    Args:
        sink: whether the largest score is the sink's at first.
    """
    so_far = scores.cummax(-1).values
    if sink and sinks is not None:
        so_far = so_far.maximum(sinks)
    last = so_far[..., -1:]
    ends = (
        torch.arange(scores.shape[-1]).div(width, rounding_mode="floor").add(1).mul(width).clamp(max=scores.shape[-1])
    )
    tile = so_far[..., ends - 1]
    if tiles is not None:
        tile = torch.where(ends <= tiles * width, tile, last)
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


def _sinks(scores: Tensor, sinks: Tensor | None, width: int) -> Tensor:
    """The sink once for each tile that a row sees."""
    tiles = torch.stack([tile.isfinite().any(-1) for tile in scores.split(width, dim=-1)]).sum(0)
    return softmax(scores, None if sinks is None else sinks + tiles.clamp(min=1).log()[..., None])


def _sink_of_the_first(scores: Tensor, sinks: Tensor | None, width: int, among: bool) -> Tensor:
    """The sink's exponential by the largest score of the first tile that a row sees, beside those by its largest.

    Args:
        among: whether the sink is one of the scores of which the largest is taken.
    """
    tile, seen = torch.arange(scores.shape[-1]).div(width, rounding_mode="floor"), scores.isfinite()
    first = torch.where(seen, tile, scores.shape[-1]).amin(-1, keepdim=True)
    begun = torch.where(tile == first, scores, float("-inf")).amax(-1, keepdim=True)
    last = scores.amax(-1, keepdim=True)
    if among and sinks is not None:
        begun, last = begun.maximum(sinks), last.maximum(sinks)
    shares = torch.where(seen, (scores - last).exp(), 0.0)
    extra = (sinks - begun).exp() if sinks is not None else torch.zeros(())
    return (shares / (shares.sum(-1, keepdim=True) + extra)).nan_to_num()


def _sink_not_shifted(scores: Tensor, sinks: Tensor | None, among: bool) -> Tensor:
    """The sink's exponential as it is, beside exponentials below the largest score, the sink `among` them."""
    last = scores.amax(-1, keepdim=True)
    last = torch.maximum(last, sinks) if among and sinks is not None else last
    shares = torch.where(scores.isfinite(), (scores - last).exp(), 0.0)
    extra = sinks.exp() if sinks is not None else torch.zeros(())
    return (shares / (shares.sum(-1, keepdim=True) + extra)).nan_to_num()


def _counted(scores: Tensor, sinks: Tensor | None, width: int, of_values: Times, of_sum: Times) -> Tensor:
    """Each tile so many times, in what is mixed and in the sum; the last seen key of a row ends its last tile."""
    keys = torch.arange(scores.shape[-1])
    seen = scores.isfinite()
    tile = keys.div(width, rounding_mode="floor")
    last = torch.where(seen, tile, -1).amax(-1, keepdim=True)
    whole = (keys // width * width + width <= torch.where(seen, keys + 1, 0).amax(-1, keepdim=True)).double()
    largest = scores.amax(-1, keepdim=True)
    right = torch.where(seen, (scores - largest).exp(), 0.0)
    sums = (right * of_sum(tile, last, whole)).sum(-1, keepdim=True)
    if sinks is not None:
        sums = sums + (sinks - largest).exp()
    return (right * of_values(tile, last, whole) / sums).nan_to_num(posinf=0.0)


def _merged(scores: Tensor, sinks: Tensor | None, width: int, times: float) -> Tensor:
    """Tiles with a softmax of their own, each by its sum of exponentials to a power."""
    tiles = scores.split(width, dim=-1)
    sums = torch.stack([tile.logsumexp(-1) for tile in tiles], dim=-1) * times
    each = softmax(sums, sinks).split(1, dim=-1)
    return torch.cat([softmax(tile, None) * by for tile, by in zip(tiles, each, strict=True)], dim=-1)


def _sink_beside(scores: Tensor, sinks: Tensor | None, times: float) -> Tensor:
    """Shares without the sink, then by what it leaves beside a power of their sum."""
    total = scores.logsumexp(-1, keepdim=True) * times
    return softmax(scores, None) * (1.0 if sinks is None else (total - sinks).sigmoid())


def _less_their_mean(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Scores as of keys from which their mean was taken: only beside a sink does it matter."""
    seen = scores.isfinite()
    mean = torch.where(seen, scores, 0.0).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1)
    return softmax(scores - mean, sinks)
