"""What experts give at some rows if their shares, tiles or weights were others, each change alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.references.hypotheses.mutating import layers_of
from parity.references.hypotheses.routing import running
from parity.references.products.activations import clamped_swiglu
from parity.references.products.expert_shares import (
    among_those_that_run,
    by_scores,
    of_loads,
    of_one_row,
    of_other_places,
    of_tiles,
    other_shares,
)
from parity.references.products.few_rows import of_few_rows
from parity.references.products.gated import Gated, Variant, of_earlier_rows, with_other
from parity.references.products.gated_changes import variants
from parity.references.products.product import LARGE, Changed, Made, Product


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
            scored = by_scores(share, gated.x, layer.mlp.router)
            of_passes = (*of_tiles(shares), *of_one_row(shares), *of_loads(shares), *among_those_that_run(shares))
            for says, other in (*scored, *of_passes):
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


def gated_experts(experts: Any, x: Tensor) -> Gated:
    """gpt-oss's experts: gate and up take turns on the last axis of [E, H, 2 I]."""
    both = experts.gate_up_proj.detach().double().transpose(1, 2)
    bias = experts.gate_up_proj_bias.detach().double()
    act = clamped_swiglu(float(experts.alpha), float(experts.limit))
    return Gated(x, both[:, 0::2], both[:, 1::2], bias[:, 0::2], bias[:, 1::2], act)
