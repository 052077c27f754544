"""What experts give at some rows if their shares, tiles or weights were others, each change alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.references.hypotheses.mutating import layers_of
from parity.references.hypotheses.routing import running
from parity.references.products.activations import clamped_swiglu
from parity.references.products.few_rows import of_few_rows
from parity.references.products.gated import Gated, Variant, of_earlier_rows, with_other
from parity.references.products.gated_changes import variants
from parity.references.products.product import LARGE, NARROW, STEPS, Changed, Made, Product, kept_in


def _near(loop: Any, side: str, number: int) -> dict[str, Any]:
    """The experts of the layers before and behind, where taking them beside a layer's own costs little memory."""
    layers = dict(layers_of(loop, side, "all"))
    there = [number + step for step in (-1, 1) if number + step in layers]
    held = {f"layer {other}": layers[other].mlp.experts for other in there}
    return {whose: one for whose, one in held.items() if one.gate_up_proj.numel() <= LARGE}


SIDES = ("gate", "up", "gate_bias", "up_bias")


def _of_layers(near: dict[str, Any]) -> Iterator[tuple[str, Variant]]:
    """Gate, up or their biases of another layer's experts."""
    for whose, held in near.items():
        other = gated_experts(held, torch.zeros(()))
        for side in SIDES:
            yield f"the {side.replace('_', ' ')} of {whose}", partial(with_other, **{side: getattr(other, side)})
        for says, sides in (("gate and up", SIDES[:2]), ("gate, up and their biases", SIDES)):
            yield f"{says} of {whose}", partial(with_other, **{side: getattr(other, side) for side in sides})


def _down(held: Any) -> Tensor:
    """Down weights of all experts and their biases as columns [H, E I + E]."""
    down = held.down_proj.detach().double()
    return torch.cat((down.flatten(0, 1).T, held.down_proj_bias.detach().double().T), dim=1)


def mixture(loop: Any, side: str, number: int, layer: Any, stack: ExitStack) -> Made:
    """Each expert's inner activation times its share of the row, and the share alone, which meets its bias."""
    held, rows, shares = layer.mlp.experts, [], []

    def run(module: Any, inner: Callable[..., Tensor], hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        flat = hidden.detach().reshape(-1, hidden.shape[-1]).double()
        rows.append(flat)
        shares.append(flat.new_zeros(len(flat), module.num_experts).scatter(1, ids, weights.detach().double()))
        return inner(hidden, ids, weights)

    stack.enter_context(running(loop, number, run))

    def made() -> list[Product]:
        count, width = held.num_experts, held.down_proj.shape[1]
        share, near = torch.cat(shares), _near(loop, side, number)
        parts = [(f"the down weight of expert {one}", one * width, (one + 1) * width) for one in range(count)]
        parts += [
            (f"the down bias of expert {one}", count * width + one, count * width + one + 1) for one in range(count)
        ]
        gated = gated_experts(held, torch.cat(rows))

        def whole(inner: Tensor, of_inner: Tensor, of_bias: Tensor) -> Any:
            return torch.cat(((inner * of_inner[..., None]).flatten(1), of_bias), dim=1).numpy()

        right = gated.inner()

        def changed(variant: Variant, rows: Any, of: Gated = gated) -> Any:
            return whole(variant(of.at(rows)).inner(), share[rows], share[rows])

        def weighed(inner: Tensor, of_inner: Tensor, of_bias: Tensor, rows: Any) -> Any:
            return whole(inner[rows], of_inner[rows], of_bias[rows])

        def others() -> Iterator[tuple[str, Changed]]:
            for says, variant in variants(gated, float(held.alpha), float(held.limit)):
                yield says, partial(changed, variant)
            for says, variant in _of_layers(near):
                yield says, partial(changed, variant)
            for says, late in of_earlier_rows(gated):
                yield says, partial(changed, with_other, of=late)
            chosen, entering = (share > 0).double(), gated.inner(share)
            weigh = "experts weigh what they are given, not what they give"
            yield weigh, partial(weighed, entering, chosen, chosen)
            yield f"{weigh} but for the bias", partial(weighed, entering, chosen, share)
            for says, other in other_shares(share):
                yield says, partial(weighed, right, other, other)
                yield f"{says}, of the down bias alone", partial(weighed, right, share, other)
                yield f"{says}, but for the down bias", partial(weighed, right, other, share)
            by_scores = _by_scores(share, gated.x, layer.mlp.router)
            of_passes = (*_of_tiles(shares), *_of_one_row(shares), *of_loads(shares), *among_those_that_run(shares))
            for says, other in (*by_scores, *of_passes):
                yield says, partial(weighed, right, other, other)
            for says, others_of_few in of_few_rows(gated, right, shares):
                yield says, partial(weighed, *others_of_few)
            for says, other in of_other_places(right, shares):
                yield says, partial(weighed, other, share, share)

        def beside() -> Iterator[tuple[str, Any]]:
            for whose, other in near.items():
                yield f"{whose}", _down(other).float().numpy()

        return [Product(whole(right, share, share), _down(held).float().numpy(), tuple(parts), others, beside=beside)]

    return made


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


def _of_tiles(shares: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """What experts weigh [R, E] where a pass's rows, sorted by their experts, are cut into tiles of one expert each."""
    for size in TILES:
        for which, place in (("first", 0), ("last", -1)):
            says = f"rows sorted by expert in tiles of {size}, each by the expert of its {which} row"
            yield says, torch.cat([_by_tile(share, size, place) for share in shares])


def _of_one_row(shares: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
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


def _by_scores(share: Tensor, x: Tensor, router: Any) -> Iterator[tuple[str, Tensor]]:
    """What chosen experts weigh [R, E] where the softmax of the router's scores of rows x [R, H] is made otherwise."""
    weight, bias = router.weight.detach().double(), router.bias.detach().double()
    yield from _without_bias(share, bias)
    total = torch.where(share > 0, (x @ weight.T + bias).exp(), 0.0).sum(-1, keepdim=True)
    chosen = int((share > 0).sum(-1).max())
    for lanes in sorted({*LANES, share.shape[1] - chosen}):
        yield f"the shares of a softmax that has {lanes} scores of zero beside", share * total / (total + lanes)


LANES = (1, 2, 4, 6, 12, 14, 28, 30, 60, 62)
"""Scores of zero that a softmax over lanes has beside those of the chosen experts: 2 or 4 of 4, 8, 16, 32, 64."""


def _without_bias(share: Tensor, bias: Tensor) -> Iterator[tuple[str, Tensor]]:
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


def gated_experts(experts: Any, x: Tensor) -> Gated:
    """gpt-oss's experts: gate and up take turns on the last axis of [E, H, 2 I]."""
    both = experts.gate_up_proj.detach().double().transpose(1, 2)
    bias = experts.gate_up_proj_bias.detach().double()
    act = clamped_swiglu(float(experts.alpha), float(experts.limit))
    return Gated(x, both[:, 0::2], both[:, 1::2], bias[:, 0::2], bias[:, 1::2], act)
