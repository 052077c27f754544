"""What experts may weigh instead, and whose rows they may take: each change alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from parity.references.products.product import NARROW, STEPS, kept_in


def other_shares(share: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What chosen experts may weigh instead, [R, E]; those that are not chosen weigh nothing."""
    chosen = share > 0
    yield "experts not weighed by their shares", chosen.double()
    yield "all experts of a row weigh the same", chosen / chosen.sum(-1, keepdim=True)
    yield "experts weighed by their shares twice", share**2
    yield "the shares in reverse", torch.where(chosen, share.sum(-1, keepdim=True) - share, 0.0)
    best = share == share.amax(-1, keepdim=True)
    yield "the best expert alone, with its share", share * best
    yield "the best expert alone, with all of it", share.sum(-1, keepdim=True) * best
    yield "all but the best expert", share * ~best
    numbers = torch.arange(share.shape[1])
    low, high = (torch.where(chosen, numbers, none) for none in (share.shape[1], -1))
    for says, some in (("lowest", low == low.amin(-1, keepdim=True)), ("highest", high == high.amax(-1, keepdim=True))):
        yield f"of a row's experts the one of the {says} number is missing", share * ~some
        yield f"of a row's experts the one of the {says} number counts twice", share * (1 + some.to(share))
    yield "the shares of the row before", share.roll(1, 0)
    yield "the shares of the row behind", share.roll(-1, 0)
    ranked = share.sort(dim=1, descending=True)
    count = int(chosen.sum(-1).max())
    yield "experts numbered by their place among a row's choices", _first(ranked.values, count)
    for place in range(count):
        experts = ranked.indices[:, :count].clone()
        experts[:, place] = experts[:, place].roll(1)
        taken = torch.zeros_like(share).scatter_add(1, experts, ranked.values[:, :count])
        yield f"as choice {place + 1} the expert of the row before", taken
    for rows in STEPS:
        if rows < len(share):
            taken = torch.zeros_like(share).scatter(1, ranked.indices, ranked.values.roll(rows, 0))
            yield f"choice by choice the shares of the row {rows} before", taken
    for name, dtype in NARROW.items():
        yield f"the shares in {name}", kept_in(share, dtype)


def _first(values: Tensor, count: int) -> Tensor:
    """The first so many columns of [R, E], and zeros behind."""
    return torch.cat((values[:, :count], torch.zeros_like(values[:, count:])), dim=1)


TILES = (8, 16, 32, 64, 128)
"""Rows of one expert that a kernel may take together."""


def of_tiles(shares: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """What experts weigh [R, E] where a pass's rows, sorted by their experts, are cut into tiles of one expert each."""
    for size in TILES:
        for which, place in (("first", 0), ("last", -1)):
            says = f"rows sorted by expert in tiles of {size}, each by the expert of its {which} row"
            yield says, torch.cat([_by_tile(share, size, place) for share in shares])


def of_one_row(shares: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """What experts weigh [R, E] where one row of each pass tells it for all."""
    ranked = [share.sort(dim=1, descending=True) for share in shares]
    for which, place in (("first", 0), ("last", -1)):
        whole = torch.cat([share[place].expand_as(share) for share in shares])
        yield f"the experts and shares of the pass' {which} row", whole
        by_choice = [
            torch.zeros_like(share).scatter(1, order.indices, order.values[place].expand_as(share))
            for share, order in zip(shares, ranked, strict=True)
        ]
        yield f"choice by choice the shares of the pass' {which} row", torch.cat(by_choice)


def by_scores(share: Tensor, x: Tensor, router: Any) -> Iterator[tuple[str, Tensor]]:
    """What chosen experts weigh [R, E] where the softmax of the router's scores of rows x [R, H] is made otherwise."""
    weight, bias = router.weight.detach().double(), router.bias.detach().double()
    yield from without_bias(share, bias)
    scores = (x @ weight.T + bias).exp()
    total = torch.where(share > 0, scores, 0.0).sum(-1, keepdim=True)
    chosen = int((share > 0).sum(-1).max())
    ranked = scores.sort(dim=1, descending=True).values.cumsum(1)
    for best in range(chosen + 1, min(2 * chosen + 2, share.shape[1])):  # of all of them the catalogue knows
        yield f"the shares of a softmax over the best {best}", share * total / ranked[:, best - 1 : best]
    for lanes in sorted({*LANES, share.shape[1] - chosen}):
        yield f"the shares of a softmax that has {lanes} scores of zero beside", share * total / (total + lanes)


LANES = (1, 2, 4, 6, 12, 14, 28, 30, 60, 62)
"""Scores of zero that a softmax over lanes has beside those of the chosen experts: 2 or 4 of 4, 8, 16, 32, 64."""


def without_bias(share: Tensor, bias: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What chosen experts weigh [R, E] where the softmax of their scores takes the router's bias otherwise."""
    for says, power in (("without the router's bias", -1.0), ("with the router's bias twice", 1.0)):
        other = share * torch.exp(power * bias)
        yield f"the shares by scores {says}", other * (share.sum(-1, keepdim=True) / other.sum(-1, keepdim=True))


def among_those_that_run(shares: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """What experts weigh [R, E] where a pass numbers them without those that none of its rows chose.

    Args:
        shares: of each pass, [rows, E].
    """
    moved = []
    for share in shares:
        runs = (share > 0).any(0)
        moved.append(torch.cat((share[:, runs], share[:, ~runs]), dim=1))
    yield "experts numbered without those that no row of the pass chose", torch.cat(moved)


FEW = (1, 2, 3, 4, 8, 16, 32, 64)
"""Rows of a pass that an expert may run at the least, or at the most."""


def of_loads(shares: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """What experts weigh [R, E] where those of few rows of a pass, or some of an expert's rows, are not run.

    Args:
        shares: of each pass, [rows, E].
    """
    loads = torch.cat([(share > 0).sum(0, keepdim=True).expand_as(share) for share in shares])
    places, share = torch.cat([_places(share) for share in shares]), torch.cat(list(shares))
    for few in FEW:  # the fewest rows first: those that are right are not asked
        yield f"experts that run {few} row{'s' * (few > 1)} of a pass or fewer give nothing", share * (loads > few)
    for few in reversed(FEW):
        yield f"experts give nothing behind their first {few} row{'s' * (few > 1)} of a pass", share * (places <= few)
    for rows in reversed(TILES):
        late = share * (places > rows)
        for step, where in ((1, "behind"), (-1, "before")):
            says = f"rows behind the first {rows} of a pass that an expert runs are run by the expert {where}"
            yield says, share - late + late.roll(step, 1)
    for rows in (2, *TILES):
        more = torch.where(places == loads, (-loads) % rows, 0)
        says = (
            f"an expert's last row of a pass counts once more for each row that is missing in its last tile of {rows}"
        )
        yield says, share * (1 + more)
    for rows in reversed((2, 4, *TILES)):
        whole = share * (places <= loads // rows * rows)
        yield f"experts give nothing behind their last whole tile of {rows} rows of a pass", whole
        says = f"experts of more than {rows} rows of a pass give nothing behind their last whole tile of {rows}"
        yield says, torch.where(loads > rows, whole, share)
    yield "experts give nothing at their first row of a pass", share * (places != 1)
    yield "experts give nothing at their last row of a pass", share * (places != loads)


def _places(share: Tensor) -> Tensor:
    """The number of each row [rows, E] among those of a pass that an expert runs, counted from 1."""
    return (share > 0).cumsum(0)


def of_other_places(inner: Tensor, shares: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """What experts' activations are [R, E, I] where some of an expert's rows take those of its row before or behind.

    Args:
        inner: what they are.
        shares: of each pass, [rows, E].
    """
    rows, experts, places, loads = _taken(shares)
    for step, where in ((-1, "before"), (1, "behind")):
        there = (places + step >= 1) & (places + step <= loads)
        for which, some in _some_of(places):
            taken = (there & some).nonzero().flatten()
            other = inner.clone()
            other[rows[taken], experts[taken]] = inner[rows[taken + step], experts[taken + step]]
            yield f"{which} takes what that expert gives at its row {where}", other


def _some_of(places: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Which of an expert's rows of a pass, by their places, counted from 1."""
    for tile in reversed(TILES):  # the fewest first: rows that are right are not asked
        yield f"the first row of an expert's further tiles of {tile}", (places > tile) & (places % tile == 1)
        yield f"the last row of an expert's tiles of {tile}", places % tile == 0
    yield "each row of an expert but its first", places > 1
    yield "each row of an expert", places > 0


def _taken(shares: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of every row that an expert runs, pass by pass, expert by expert: its number, the expert, its place among those
    of the pass that the expert runs, counted from 1, and how many these are."""
    found, before = [], 0
    for share in shares:
        expert, row = share.T.nonzero(as_tuple=True)
        place, load = _places(share)[row, expert], (share > 0).sum(0)[expert]
        found.append(torch.stack((row + before, expert, place, load)))
        before += len(share)
    rows, experts, places, loads = torch.cat(found, dim=1)
    return rows, experts, places, loads


def _by_tile(share: Tensor, size: int, place: int) -> Tensor:
    """The shares [R, E] of one pass, each given to the expert that runs its tile."""
    expert, row = share.T.nonzero(as_tuple=True)
    runs = torch.cat([tile[place:][:1].expand(len(tile)) for tile in expert.split(size)])
    return torch.zeros_like(share).index_put((row, runs), share[row, expert], accumulate=True)
