"""What a gated MLP gives at some rows if its activation or its first weights were others, each change alone.

Inner activations of rows [R, H]: of each expert [R, E, I], or of one MLP as one expert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from parity.references.hypotheses.mutating import layers_of
from parity.references.hypotheses.routing import running
from parity.references.products.norms import behind_attention
from parity.references.products.product import (
    FLOATS,
    LARGE,
    LEVELS,
    NARROW,
    Changed,
    Made,
    Product,
    entered,
    in_steps,
    kept_in,
    linear,
)

TILE, HALF_TILE = 32, 16
"""Inputs behind the last whole tiles are what a loop over tiles forgets; MXFP4 blocks are as wide."""

RANKS = (2, 4)
"""Ranks for which a matrix may be cut."""


@dataclass(frozen=True)
class Gated:
    """The operands of the inner half: x [R, H], gate and up [E, I, H] with biases [E, I] (None where there are none).

    `act` makes the inner activation of gate and up.
    """

    x: Tensor
    gate: Tensor
    up: Tensor
    gate_bias: Tensor | None
    up_bias: Tensor | None
    act: Callable[[Tensor, Tensor], Tensor]

    def at(self, rows: Any) -> Gated:
        """The same at some rows, by number or as a slice."""
        return replace(self, x=self.x[rows])

    def of_expert(self, expert: int, x: Tensor) -> Tensor:
        """[r, I] of one expert at rows x [r, H]."""
        sides = ((self.gate, self.gate_bias), (self.up, self.up_bias))
        gate, up = (x @ side[expert].T if bias is None else x @ side[expert].T + bias[expert] for side, bias in sides)
        return self.act(gate, up)

    def inner(self, times: Tensor | None = None) -> Tensor:
        """[R, E, I]; each expert is given the rows so many times as large, [R, E]."""
        gate, up = (torch.einsum("rh,eih->rei", self.x, weight) for weight in (self.gate, self.up))
        if times is not None:
            gate, up = gate * times[..., None], up * times[..., None]
        gate, up = (
            side if bias is None else side + bias for side, bias in ((gate, self.gate_bias), (up, self.up_bias))
        )
        return self.act(gate, up)


def clamped_swiglu(alpha: float, limit: float) -> Callable[[Tensor, Tensor], Tensor]:
    """gpt-oss's: (up + 1) gate sigmoid(alpha gate), both clamped."""

    def act(gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (up + 1) * gate * torch.sigmoid(alpha * gate)

    return act


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """A Llama layer's."""
    return F.silu(gate) * up


Variant = Callable[[Gated], Gated]


def variants(of: Gated, alpha: float = 1.0, limit: float = float("inf")) -> Iterator[tuple[str, Variant]]:
    """Each variant with what it says; `alpha` and `limit` are the activation's where it has them."""
    yield "gate and up exchanged", _exchanged
    for name, act in activations(alpha, limit) if limit < float("inf") else _plain():
        yield name, partial(_with, act=act)
    if of.gate_bias is not None:
        yield "no bias of gate", partial(_with, gate_bias=None)
        yield "no bias of up", partial(_with, up_bias=None)
        yield "no bias of gate and up", partial(_with, gate_bias=None, up_bias=None)
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
    for name, dtype in NARROW.items():
        yield f"gate and up rounded to {name} before they are multiplied", partial(_acted, low=dtype)
    for first in range(0, of.x.shape[1] - TILE, TILE):
        for side in ("gate", "up"):
            swap = partial(_changed, sides=(side,), change=partial(_blocks, first=first))
            yield f"inputs {first} to {first + TILE - 1} of {side} exchanged with the next {TILE}", swap
    for first in range(TILE, of.x.shape[1], TILE):
        for says, sides in (("gate and up", ("gate", "up")), ("gate", ("gate",)), ("up", ("up",))):
            cut = partial(_changed, sides=sides, change=partial(_cut, first=first))
            yield f"inputs of {says} from {first} on left out", cut


def _inputs() -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Other rows [R, H] that enter."""
    for name, dtype in (FLOATS | NARROW).items():
        yield f"in {name}", partial(kept_in, dtype=dtype)
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


def _with(one: Gated, **changes: Any) -> Gated:
    return replace(one, **changes)


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
    return _with(one, **changes)


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
    return _with(one, **changes)


def _acted(one: Gated, low: torch.dtype) -> Gated:
    return _with(one, act=lambda gate, up: one.act(kept_in(gate, low), kept_in(up, low)))


def _changed(one: Gated, sides: Sequence[str], change: Callable[[Tensor], Tensor]) -> Gated:
    return _with(one, **{side: change(getattr(one, side)) for side in sides})


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


def activations(alpha: float, limit: float) -> Iterator[tuple[str, Callable[[Tensor, Tensor], Tensor]]]:
    """Other activations of gate and up [R, E, I] of a clamped SwiGLU, each with what it says."""
    inf = float("inf")
    right = clamped_swiglu(alpha, limit)
    yield "no clamp", clamped_swiglu(alpha, inf)
    yield "the sigmoid without its gate", lambda gate, up: right(gate, up) / gate.clamp(max=limit)
    yield "no up", lambda gate, up: right(gate, torch.zeros_like(up))
    yield "no clamp of up", lambda gate, up: (up + 1) * right(gate, torch.zeros_like(up))
    yield "a plain SiLU for the sigmoid's slope", clamped_swiglu(1.0, limit)

    def gated(gate: Tensor, up: Tensor, sigmoid: Callable[[Tensor], Tensor] = torch.sigmoid) -> Tensor:
        return up * gate * sigmoid(alpha * gate)

    def clamped(side: Tensor) -> Tensor:
        return side.clamp(-limit, limit)

    def cut_off(gate: Tensor, up: Tensor, cut: Callable[[Tensor], Tensor]) -> Tensor:
        return gated(gate.clamp(max=limit), clamped(up) + 1, cut)

    yield "one added to up before its clamp", lambda gate, up: gated(gate.clamp(max=limit), clamped(up + 1))
    yield "the clamp of gate on both sides", lambda gate, up: gated(clamped(gate), clamped(up) + 1)
    yield "the clamp of up above alone", lambda gate, up: gated(gate.clamp(max=limit), up.clamp(max=limit) + 1)
    yield "no clamp of gate", lambda gate, up: gated(gate, clamped(up) + 1)
    yield (
        "gate and up rounded to bfloat16 behind the clamp",
        lambda gate, up: gated(
            kept_in(gate.clamp(max=limit), torch.bfloat16), kept_in(clamped(up), torch.bfloat16) + 1
        ),
    )
    for edge in (2, 3, 4, 5, 6, 8):
        for more, above in ((f" and 1 above {edge}", True), ("", False)):
            says = f"a sigmoid that is 0 below -{edge}{more}"
            yield says, partial(cut_off, cut=partial(_cut_sigmoid, edge=float(edge), above=above))
    for reach in (2.0, 2.5, 3.0, 4.0):
        says = f"a sigmoid that is straight from -{reach:g} to {reach:g}"
        yield says, partial(cut_off, cut=partial(_hard, edge=reach))


def _hard(x: Tensor, edge: float) -> Tensor:
    """A straight line in the sigmoid's place."""
    return (x / (2 * edge) + 0.5).clamp(0, 1)


def _cut_sigmoid(x: Tensor, edge: float, above: bool = True) -> Tensor:
    """A table's sigmoid, which ends."""
    shares = torch.where(x < -edge, 0.0, torch.sigmoid(x))
    return torch.where(x > edge, 1.0, shares) if above else shares


def _plain() -> Iterator[tuple[str, Callable[[Tensor, Tensor], Tensor]]]:
    yield "GELU for SiLU", lambda gate, up: F.gelu(gate) * up
    yield "GELU's tanh form for SiLU", lambda gate, up: F.gelu(gate, approximate="tanh") * up
    yield "GELU's sigmoid form for SiLU", lambda gate, up: gate * torch.sigmoid(1.702 * gate) * up
    yield "ReLU for SiLU", lambda gate, up: F.relu(gate) * up
    yield "the sigmoid without its gate", lambda gate, up: torch.sigmoid(gate) * up
    yield "no activation of gate", lambda gate, up: gate * up
    yield "SiLU of gate times up", lambda gate, up: F.silu(gate * up)
    yield "SiLU of both", lambda gate, up: F.silu(gate) * F.silu(up)
    yield "no up", lambda gate, up: F.silu(gate)


def _cut(weight: Tensor, first: int) -> Tensor:
    cut = weight.clone()
    cut[..., first:] = 0
    return cut


def mlp(loop: Any, side: str, number: int, layer: Any, stack: ExitStack) -> Made:
    """A gated MLP's inner activation by its down projection."""
    held = layer.mlp
    rows, seen = entered(held, stack), entered(held.down_proj, stack)
    before = behind_attention(layer, (), stack)

    def made() -> list[Product]:
        gate, up = (side.weight.detach().double()[None] for side in (held.gate_proj, held.up_proj))
        gated = Gated(torch.cat(rows).double(), gate, up, None, None, swiglu)

        def others() -> Iterator[tuple[str, Changed]]:
            for says, variant in variants(gated):
                yield says, partial(_inner_of_one, gated, variant)
            for says, other in before()[0].others():
                yield f"{says} for gate and up", partial(_inner_of_rows, gated, other)

        return linear(held.down_proj, torch.cat(seen), (), others)

    return made


def _inner_of_one(gated: Gated, variant: Variant, rows: Any) -> Tensor:
    return variant(gated.at(rows)).inner()[:, 0]


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
            yield f"the {side.replace('_', ' ')} of {whose}", partial(_with, **{side: getattr(other, side)})
        for says, sides in (("gate and up", SIDES[:2]), ("gate, up and their biases", SIDES)):
            yield f"{says} of {whose}", partial(_with, **{side: getattr(other, side) for side in sides})


def _down(held: Any) -> Tensor:
    """Down weights of all experts and their biases as columns [H, E I + E]."""
    down = held.down_proj.detach().double()
    return torch.cat((down.flatten(0, 1).T, held.down_proj_bias.detach().double().T), dim=1)


def _inner_of_rows(gated: Gated, made: Changed, rows: Any) -> Tensor:
    return replace(gated, x=torch.from_numpy(made(rows))).inner()[:, 0]


def experts(loop: Any, side: str, number: int, layer: Any, stack: ExitStack) -> Made:
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

        def changed(variant: Variant, rows: Any) -> Any:
            return whole(variant(gated.at(rows)).inner(), share[rows], share[rows])

        def weighed(inner: Tensor, of_inner: Tensor, of_bias: Tensor, rows: Any) -> Any:
            return whole(inner[rows], of_inner[rows], of_bias[rows])

        def others() -> Iterator[tuple[str, Changed]]:
            for says, variant in variants(gated, float(held.alpha), float(held.limit)):
                yield says, partial(changed, variant)
            for says, variant in _of_layers(near):
                yield says, partial(changed, variant)
            chosen, entering = (share > 0).double(), gated.inner(share)
            weigh = "experts weigh what they are given, not what they give"
            yield weigh, partial(weighed, entering, chosen, chosen)
            yield f"{weigh} but for the bias", partial(weighed, entering, chosen, share)
            for says, other in other_shares(share):
                yield says, partial(weighed, right, other, other)
                yield f"{says}, of the down bias alone", partial(weighed, right, share, other)
                yield f"{says}, but for the down bias", partial(weighed, right, other, share)
            for says, other in _of_tiles(shares):
                yield says, partial(weighed, right, other, other)

        def beside() -> Iterator[tuple[str, Any]]:
            for whose, other in near.items():
                yield f"{whose}", _down(other).float().numpy()

        return [Product(whole(right, share, share), _down(held).float().numpy(), tuple(parts), others, beside=beside)]

    return made


def other_shares(share: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What chosen experts may weigh instead, [R, E]; those that are not chosen weigh nothing."""
    chosen = share > 0
    count = chosen.sum(-1, keepdim=True)
    yield "experts not weighed by their shares", chosen.double()
    yield "all experts of a row weigh the same", chosen / count
    yield "experts weighed by their shares twice", share**2
    yield "the shares in reverse", torch.where(chosen, share.sum(-1, keepdim=True) - share, 0.0)
    best = share == share.amax(-1, keepdim=True)
    yield "the best expert alone, with its share", share * best
    yield "the best expert alone, with all of it", share.sum(-1, keepdim=True) * best
    yield "all but the best expert", share * ~best
    yield "the shares of the row before", share.roll(1, 0)
    yield "the shares of the row behind", share.roll(-1, 0)
    ranked = share.sort(dim=1, descending=True)
    for rows in (1, 2, 4, 8, 16, 32, 64, 128):
        if rows < len(share):
            taken = torch.zeros_like(share).scatter(1, ranked.indices, ranked.values.roll(rows, 0))
            yield f"choice by choice the shares of the row {rows} before", taken
    for name, dtype in NARROW.items():
        yield f"the shares in {name}", kept_in(share, dtype)


TILES = (8, 16, 32, 64, 128)
"""Rows of one expert that a kernel may take together."""


def _of_tiles(shares: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """What experts weigh [R, E] where a pass's rows, sorted by their experts, are cut into tiles of one expert each."""
    for size in TILES:
        for which, place in (("first", 0), ("last", -1)):
            says = f"rows sorted by expert in tiles of {size}, each by the expert of its {which} row"
            yield says, torch.cat([_by_tile(share, size, place) for share in shares])


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
