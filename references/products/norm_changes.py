"""Small changes of a norm: other weights, other sums, another eps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from parity.references.products.product import FLOATS, NARROW, kept_in

Norm = Callable[[Tensor], Tensor]

TILE, MOST = 16, 64
"""Columns behind whose multiples a sum of squares may end, and about how many of these are tried."""

SHARDS = (2, 3, 4, 8)
"""Ranks, cores or tiles among which the columns of a row may lie."""

PADDED = (64, 128, 256, 512, 1024)
"""Columns of a tile that a row may be padded to."""


def variants(weight: Tensor, eps: float, others: Sequence[tuple[str, Tensor]]) -> Iterator[tuple[str, Norm]]:
    """Each with what it says.

    Args:
        weight: of the norm, float64 [H].
        others: weights of other norms of the same size, by name.
    """

    ones = torch.ones_like(weight)
    changes: dict[str, Norm] = {
        "the norm without its weight": partial(normed, by=ones, eps=eps),
        "the norm's weight and one": partial(normed, by=weight + 1, eps=eps),
        "no norm": lambda x: x,
        "no norm but its weight": lambda x: x * weight,
        "the norm twice": lambda x: normed(normed(x, weight, eps), weight, eps),
        "a norm that takes the mean away": lambda x: normed(x - x.mean(-1, keepdim=True), weight, eps),
    }
    for factor in (0.01, 0.1, 10.0, 100.0):
        changes[f"the norm's eps {factor:g} times as large"] = partial(normed, by=weight, eps=eps * factor)
    changes["the norm's eps added behind the root"] = partial(_behind_root, by=weight, eps=eps)
    changes["no eps"] = partial(normed, by=weight, eps=0.0)
    changes["the sum of squares for their mean"] = partial(
        normed, by=weight / len(weight) ** 0.5, eps=eps / len(weight)
    )
    for more, says in ((-1, "one fewer"), (1, "one more")):
        times = (1 + more / len(weight)) ** 0.5
        by, larger = weight * times, eps * times**2
        changes[f"the squares divided by {says} than there are"] = partial(normed, by=by, eps=larger)
    for tile in PADDED:
        width = -(-len(weight) // tile) * tile
        if width > len(weight):
            by = weight * (width / len(weight)) ** 0.5
            changes[f"the mean square over {width} columns, {width - len(weight)} of them zeros"] = partial(
                normed, by=by, eps=eps * width / len(weight)
            )
    for shards in SHARDS:
        if len(weight) % shards == 0:
            changes[f"the mean of the roots of {shards} shards' mean squares"] = partial(
                _mean_of_roots, by=weight, eps=eps, shards=shards
            )
            changes[f"the mean square of each of {shards} shards of the columns alone"] = partial(
                _sharded, by=weight, eps=eps, shards=shards
            )
    for name, other in others:
        changes[f"the weight of {name}"] = partial(normed, by=other, eps=eps)
    for name, dtype in FLOATS.items():
        changes[f"the norm's weight in fp8 ({name})"] = partial(normed, by=weight.to(dtype).double(), eps=eps)
    for name, dtype in NARROW.items():
        changes |= _narrow(name, partial(kept_in, dtype=dtype), weight, eps)
    for last in range(TILE, len(weight), max(TILE, len(weight) // MOST // TILE * TILE)):
        changes[f"the mean square of the first {last} columns"] = partial(normed, by=weight, eps=eps, last=last)
        changes[f"the squares of columns from {last} on counted twice"] = partial(
            _twice, by=weight, eps=eps, first=last
        )
        wider = (len(weight) / last) ** 0.5  # the sum of fewer squares, divided by all columns
        changes[f"the squares of columns from {last} on are not read"] = partial(
            normed, by=weight * wider, eps=eps * wider**2, last=last
        )
    yield from changes.items()


def _twice(x: Tensor, by: Tensor, eps: float, first: int) -> Tensor:
    more = x[:, first:].square().sum(-1, keepdim=True) / x.shape[1]
    return _by(x, x.square().mean(-1, keepdim=True) + more, by, eps)


def _sharded(x: Tensor, by: Tensor, eps: float, shards: int) -> Tensor:
    each = x.unflatten(-1, (shards, -1))
    normed_shards: Tensor = each * torch.rsqrt(each.square().mean(-1, keepdim=True) + eps)
    return normed_shards.flatten(-2) * by


def _mean_of_roots(x: Tensor, by: Tensor, eps: float, shards: int) -> Tensor:
    each = x.unflatten(-1, (shards, -1)).square().mean(-1) + eps
    root: Tensor = each.sqrt().mean(-1, keepdim=True)
    return x / root * by


def _behind_root(x: Tensor, by: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * by


def _narrow(name: str, low: Norm, weight: Tensor, eps: float) -> dict[str, Norm]:
    """One step of the norm after another in fewer bits."""
    ones = torch.ones_like(weight)
    return {
        f"the norm's input in {name}": lambda x: normed(low(x), weight, eps),
        f"the norm's squares in {name}": lambda x: _by(x, low(x.square()).mean(-1, True), weight, eps),
        f"the norm's squares added one by one in {name}": lambda x: _by(x, _one_by_one(x, low), weight, eps),
        f"the norm's mean square in {name}": lambda x: _by(x, low(x.square().mean(-1, True)), weight, eps),
        f"the norm's inverse root in {name}": lambda x: x * low(normed_by(x, eps)) * weight,
        f"the normed rows in {name} before the weight": lambda x: low(normed(x, ones, eps)) * weight,
    }


def _one_by_one(x: Tensor, low: Norm) -> Tensor:
    """Mean squares [R, 1] whose sum, and each square, is rounded behind every column."""
    total = torch.zeros_like(x[:, 0])
    for column in low(x.square()).unbind(1):
        total = low(total + column)
    return total[:, None] / x.shape[1]


def _by(x: Tensor, square: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(square + eps) * weight


def normed(x: Tensor, by: Tensor, eps: float, last: int | None = None) -> Tensor:
    """Rows [R, H] by their root mean square, of the first columns alone where so many are said, and a weight."""
    return x * normed_by(x[:, :last], eps) * by


def normed_by(x: Tensor, eps: float) -> Tensor:
    """What a norm multiplies rows [R, H] by before their weight: the inverse of the root mean square, [R, 1]."""
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
