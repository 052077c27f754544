"""What attention gives at some rows if keys, heads or roundings were others: small changes of one equation, each alone.

A variant is a function of the operands of one pass, so that many of them cost no run: q [N, S, D], k and v [G, T, D],
which keys are seen [S, T] and the sinks [N], in float64, to what is mixed [S, N, D].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.references.hypotheses.masks import Attend, attending, seen_keys
from parity.references.hypotheses.mutating import layers_of
from parity.references.products.product import FLOATS, Made, Product, entered, linear

NEAR = (1, 2, 3, 4)
"""Distances of single keys, and numbers of rows in a pass."""
FIRST = (1, 4, 8, 16)
"""Keys at the start of the cache."""
WINDOWS = (8, 16, 32, 64, 128, 256)
"""Keys that a row sees at the most, its own among them."""


@dataclass(frozen=True)
class Pass:
    """The operands of one pass of one layer; `rounded` is what becomes of the shares."""

    q: Tensor
    k: Tensor
    v: Tensor
    seen: Tensor
    sinks: Tensor | None
    rounded: Callable[[Tensor], Tensor] = lambda shares: shares

    @property
    def distance(self) -> Tensor:
        """How far behind each row each key is, [S, T]; negative for keys of later rows."""
        rows, keys = self.seen.shape
        return torch.arange(keys - rows, keys)[:, None] - torch.arange(keys)

    @property
    def cached(self) -> int:
        """Keys of earlier passes."""
        return self.seen.shape[1] - self.seen.shape[0]

    def mixed(self) -> Tensor:
        """Values by their shares, [S, N, D]; a row that sees nothing mixes nothing."""
        many = len(self.q) // len(self.k)
        k, v = (side.repeat_interleave(many, dim=0) for side in (self.k, self.v))
        logits = self.q @ k.transpose(1, 2) * self.q.shape[-1] ** -0.5
        logits = logits.masked_fill(~self.seen, float("-inf"))
        if self.sinks is not None:
            logits = torch.cat((logits, self.sinks.view(-1, 1, 1).expand(*logits.shape[:2], 1)), dim=-1)
        shares = logits.softmax(-1).nan_to_num()[..., : k.shape[1]]
        return (self.rounded(shares) @ v).transpose(0, 1)


Variant = Callable[[Pass], Pass]


def variants(groups: int, sinks: bool) -> Iterator[tuple[str, Variant]]:
    """Each variant with what it says, for so many groups of heads, with or without sinks."""
    yield from _of_masks()
    yield from _of_operands()
    for one in range(groups):
        for other in range(one + 1, groups):
            yield f"kv groups {one} and {other} exchanged", _exchanged(one, other, "kv")
            yield f"the keys of groups {one} and {other} exchanged", _exchanged(one, other, "k")
            yield f"the values of groups {one} and {other} exchanged", _exchanged(one, other, "v")
    if sinks:
        yield "no sink", lambda one: replace(one, sinks=None)
        yield "the sink twice", _sink(lambda held: held + 0.6931471805599453)
        yield "the sink scaled as the scores are", _sink(lambda held: held, scaled=True)
        yield "the sink of the next head", _sink(lambda held: held.roll(-1))
        yield "the sink of the head before", _sink(lambda held: held.roll(1))


def _keys(one: Pass) -> Tensor:
    """Numbers of the keys, [S, T]."""
    return torch.arange(one.seen.shape[1]).expand_as(one.seen)


def _oldest(one: Pass) -> Tensor:
    """The number of the oldest key that each row sees, [S, 1]."""
    return torch.where(one.seen, _keys(one), one.seen.shape[1]).amin(1, keepdim=True)


Which = Callable[[Pass], Tensor]


def _without(which: Which) -> Variant:
    return lambda one: replace(one, seen=one.seen & ~which(one))


def _beside(which: Which) -> Variant:
    return lambda one: replace(one, seen=one.seen | which(one))


def _of_masks() -> Iterator[tuple[str, Variant]]:
    """Keys that are not seen though they should be, or the other way round."""
    hidden: dict[str, Which] = {
        "a row does not see its own key": lambda one: one.distance == 0,
        "a row does not see the other rows of its pass": partial(_others, row=0),
        "a row sees no row of its pass": lambda one: _keys(one) >= one.cached,
        "a row sees its own pass alone": lambda one: _keys(one) < one.cached,
        "a row sees itself alone": lambda one: one.distance != 0,
        "the last cached key is not seen": lambda one: _keys(one) == one.cached - 1,
        "the oldest key that is due is not seen": lambda one: _keys(one) == _oldest(one),
    }
    for number in NEAR:
        hidden[f"rows of the pass from number {number} on do not see each other"] = partial(_others, row=number)
        hidden[f"the key {number} back is not seen"] = partial(_back, number=number)
    for number in WINDOWS:
        hidden[f"a row sees the last {number} keys alone"] = partial(_beyond, number=number)
    for number in FIRST:
        hidden[f"the first {number} keys are not seen"] = partial(_before, number=number)
    shown: dict[str, Which] = {
        "one key more, the next older, is seen": lambda one: _keys(one) == _oldest(one) - 1,
        "the next row is seen": lambda one: one.distance == -1,
        "all rows of the pass are seen": lambda one: _keys(one) >= one.cached,
        "every key is seen": lambda one: torch.ones_like(one.seen),
    }
    yield from ((says, _without(which)) for says, which in hidden.items())
    yield from ((says, _beside(which)) for says, which in shown.items())


def _others(one: Pass, row: int) -> Tensor:
    """Keys of the pass from a row on, but for each row's own."""
    return (_keys(one) >= one.cached + row) & (one.distance != 0)


def _back(one: Pass, number: int) -> Tensor:
    return one.distance == number


def _beyond(one: Pass, number: int) -> Tensor:
    return one.distance >= number


def _before(one: Pass, number: int) -> Tensor:
    return _keys(one) < number


def _of_operands() -> Iterator[tuple[str, Variant]]:
    """Operands in fewer bits, or of the row beside."""
    for name, dtype in FLOATS.items():
        for what, sides in {"queries": "q", "keys": "k", "values": "v", "keys and values": "kv"}.items():
            yield f"{what} in fp8 ({name})", partial(_rounded, sides=sides, dtype=dtype)
        yield f"the shares in fp8 ({name})", partial(_coarse_shares, dtype=dtype)
    for what, side in {"keys": "k", "values": "v"}.items():
        for step, where in ((1, "before"), (-1, "behind")):
            yield f"the {what} of the row {where}", partial(_rolled, side=side, step=step)


def _low(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.bfloat16().to(dtype).double()  # a device has them in bfloat16 before


def _rounded(one: Pass, sides: str, dtype: torch.dtype) -> Pass:
    changed: dict[str, Any] = {side: _low(getattr(one, side), dtype) for side in sides}
    return replace(one, **changed)


def _coarse_shares(one: Pass, dtype: torch.dtype) -> Pass:
    return replace(one, rounded=partial(_low, dtype=dtype))


def _rolled(one: Pass, side: str, step: int) -> Pass:
    changed: dict[str, Any] = {side: getattr(one, side).roll(step, 1)}
    return replace(one, **changed)


def _exchanged(one: int, other: int, sides: str) -> Variant:
    def exchanged(held: Pass) -> Pass:
        order = list(range(len(held.k)))
        order[one], order[other] = other, one
        changed: dict[str, Any] = {side: getattr(held, side)[order] for side in sides}
        return replace(held, **changed)

    return exchanged


def _sink(change: Callable[[Tensor], Tensor], scaled: bool = False) -> Variant:
    def changed(one: Pass) -> Pass:
        sinks = one.sinks if one.sinks is not None else one.q.new_zeros(len(one.q))
        return replace(one, sinks=change(sinks) * (one.q.shape[-1] ** -0.5 if scaled else 1.0))

    return changed


def passes(loop: Any, side: str, number: int, stack: ExitStack) -> list[Pass]:
    """The operands of a layer's attention from now on, pass by pass."""
    held: list[Pass] = []
    attention = layers_of(loop, side, number)[0][1].self_attn
    sinks = attention.sinks.detach().double() if side == "target" else None

    def change(attend: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        first, second, third = (x[0].detach().double() for x in (q, k, v))
        held.append(Pass(first, second, third, seen_keys(mask)[0, 0][..., : k.shape[2]].expand(q.shape[2], -1), sinks))
        return attend(q, k, v, mask)

    stack.enter_context(attending(loop, number, change, side))
    return held


def heads(loop: Any, side: str, number: int, layer: Any, stack: ExitStack) -> Made:
    """Heads by the output projection."""
    held, seen = passes(loop, side, number, stack), entered(layer.self_attn.o_proj, stack)

    def made() -> list[Product]:
        size, count, groups = held[0].q.shape[2], len(held[0].q), len(held[0].k)
        parts = [(f"head {head}", head * size, (head + 1) * size) for head in range(count)]

        def others() -> Iterator[tuple[str, Tensor]]:
            for says, variant in variants(groups, held[0].sinks is not None):
                yield says, torch.cat([variant(one).mixed().flatten(1) for one in held])

        return linear(layer.self_attn.o_proj, torch.cat(seen), parts, others)

    return made
