"""Operands that are rounded, turned, moved or another head's, each a small change with what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.references.products.attention.operands import Pass, Variant, changed
from parity.references.products.product import FLOATS, NARROW, as_it_is, kept_in
from parity.references.products.rotated import last_rows_alike, rotations, turned_to

LN2 = 0.6931471805599453


def of_operands() -> Iterator[tuple[str, Variant]]:
    """Operands in fewer bits, or of the row beside."""
    for name, dtype in FLOATS.items():
        for what, sides in {"queries": "q", "keys": "k", "values": "v", "keys and values": "kv"}.items():
            yield f"{what} in fp8 ({name})", partial(changed, sides=sides, change=partial(_low, dtype=dtype))
        yield f"the shares in fp8 ({name})", partial(_shares, change=partial(_low, dtype=dtype))
        for whose, of in WRITTEN.items():
            yield f"keys and values {whose} in fp8 ({name})", partial(_written, of=of, low=partial(_low, dtype=dtype))
    for whose, of in (WRITTEN | OWN).items():
        for what, sides in {"keys and values": "kv", "keys": "k", "values": "v"}.items():
            yield f"zeros for {what} {whose}", partial(_written, of=of, low=torch.zeros_like, sides=sides)
    for name, dtype in NARROW.items():
        for what, side in {"queries": "q", "keys": "k", "values": "v"}.items():
            yield f"{what} in {name}", partial(changed, sides=side, change=partial(kept_in, dtype=dtype))
    for what, sides in {"keys": "k", "values": "v", "keys and values": "kv"}.items():
        for tile in TILES:
            for says, which in (
                (f"of the tile of {tile} before, from its second on", lambda number: number > 0),
                (f"of each pair's first tile of {tile}", lambda number: number % 2 == 1),
                (f"of the first tile of {tile} in place of the second's", lambda number: number == 1),
            ):
                change = partial(_of_tile_before, tile=tile, which=which)
                yield f"the {what} {says}", partial(changed, sides=sides, change=change)
    for what, side in {"keys": "k", "values": "v"}.items():
        for step, where in ((1, "before"), (-1, "behind")):
            yield (
                f"the {what} of the row {where}",
                partial(changed, sides=side, change=partial(torch.roll, shifts=step, dims=1)),
            )


TILES = (8, 16, 32, 64, 128)
"""Keys that a kernel may load together."""


def _of_tile_before(x: Tensor, tile: int, which: Callable[[Tensor], Tensor]) -> Tensor:
    """Rows [G, T, D] that a buffer had before, in these of the tiles by number."""
    places = torch.arange(x.shape[1])
    return x[:, torch.where(which(places // tile), places - tile, places)]


def of_scores() -> Iterator[tuple[str, Variant]]:
    """Scores of another size, or in fewer bits."""
    sizes = {
        "log2(e) times as large, as of a power of two": 1 / LN2,
        "ln(2) times as large": LN2,
        "twice as large": 2.0,
        "half as large": 0.5,
    }
    for says, factor in sizes.items():
        yield f"the scores {says}", partial(_scored, change=partial(torch.mul, other=factor))
    yield "the scores without their scale", lambda one: _scored(one, lambda scores: scores * one.q.shape[-1] ** 0.5)
    yield "the scores scaled twice", lambda one: _scored(one, lambda scores: scores * one.q.shape[-1] ** -0.5)
    for name, dtype in NARROW.items():
        yield f"the scores in {name}", partial(_scored, change=partial(kept_in, dtype=dtype))
        yield f"the shares in {name}", partial(_shares, change=partial(kept_in, dtype=dtype))
    for name, dtype in (FLOATS | NARROW).items():
        yield f"the queries, scaled already, in {name}", partial(_scaled_queries, low=partial(kept_in, dtype=dtype))
    for name, dtype in NARROW.items():
        low = partial(kept_in, dtype=dtype)
        for what, at in (("exponentials", 0), ("sum of the exponentials", 1), ("inverse of their sum", 2)):
            steps = tuple(low if at == place else as_it_is for place in range(3))
            yield f"the {what} in {name}", partial(_softmax_of, steps=steps)
        for about in ABOUT:
            says = f"the exponentials in {name}, of scores less {about:g} and not less the row's largest"
            yield says, partial(_softmax_of, steps=(low, as_it_is, as_it_is), about=about)


ABOUT = (0.0, 4.0, 5.0, 8.0, 10.0, 12.0, 16.0, 20.0)
"""Constants that a kernel may subtract from scores in place of each row's largest."""


WRITTEN: dict[str, Callable[[Pass], slice]] = {
    "of the prompt": lambda one: slice(0, one.prompt),
    "of rows behind the prompt": lambda one: slice(one.prompt, None),
    "of earlier passes": lambda one: slice(0, one.cached),
    "of earlier passes behind the prompt": lambda one: slice(one.prompt, max(one.prompt, one.cached)),
}
"""Which keys one kind of pass wrote."""

OWN: dict[str, Callable[[Pass], slice]] = {
    "of the pass": lambda one: slice(one.cached, None),
    "of the pass but its first row": lambda one: slice(one.cached + 1, None),
}
"""Keys of the rows that attend themselves: what a pass may read before it is written."""


def _written(one: Pass, of: Callable[[Pass], slice], low: Callable[[Tensor], Tensor], sides: str = "kv") -> Pass:
    some, changed = of(one), {side: getattr(one, side).clone() for side in sides}
    for held in changed.values():
        held[:, some] = low(held[:, some])
    return replace(one, **changed)


def _scaled_queries(one: Pass, low: Callable[[Tensor], Tensor]) -> Pass:
    scale = one.q.shape[-1] ** -0.5
    return replace(one, q=low(one.q * scale) / scale)


Steps = tuple[Callable[[Tensor], Tensor], ...]
"""What is done to the exponentials, to their sum and to its inverse."""


def _softmax_of(one: Pass, steps: Steps, about: float | None = None) -> Pass:
    return replace(one, shared=partial(_stepwise, steps=steps, about=about))


def _stepwise(scores: Tensor, sinks: Tensor | None, steps: Steps, about: float | None = None) -> Tensor:
    """Shares of scores [N, S, T] as a kernel makes them: exponentials behind the largest score, or a constant, by their
    sum."""
    top = scores.amax(-1, keepdim=True)
    top = torch.where(top.isinf(), 0.0, top) if sinks is None else torch.maximum(top, sinks)
    top = top if about is None else torch.full_like(top, about)
    each, total, inverse = steps
    shown = each((scores - top).exp())
    summed = shown.sum(-1, keepdim=True) + (0.0 if sinks is None else each((sinks - top).exp()))
    return (shown * inverse(1 / total(summed))).nan_to_num()


def _shares(one: Pass, change: Callable[[Tensor], Tensor]) -> Pass:
    return replace(one, rounded=change)


def _scored(one: Pass, change: Callable[[Tensor], Tensor]) -> Pass:
    return replace(one, scored=change)


def of_rotations() -> Iterator[tuple[str, Variant]]:
    """Queries, keys or both rotated otherwise; keys one ahead are queries one behind, and both together nothing."""
    for says, change in rotations():
        for what, sides in {"queries": "q", "keys": "k", "queries and keys": "qk"}.items():
            yield f"the {what} {says}", partial(Pass.turned, change=change, sides=sides)
            if "k" in sides:
                own = partial(Pass.turned, change=change, sides=sides, own=True)
                yield f"the {what} of the pass {says}", own
    for says, other in last_rows_alike():
        alike = partial(turned_to, other=other)
        for what, sides in {"queries": "q", "keys": "k", "queries and keys": "qk"}.items():
            yield f"the {what} of the pass turned, {says}", partial(Pass.turned, change=alike, sides=sides, own=True)
    for step, where in ((1, "on"), (-1, "back")):
        moved = partial(turned_to, other=partial(torch.add, other=step))
        yield f"the queries turned one position {where}", partial(Pass.turned, change=moved, sides="q")


def of_groups(groups: int) -> Iterator[tuple[str, Variant]]:
    """Heads that take another of so many kv groups."""
    for one in range(groups) if groups > 1 else ():
        for what, sides in {"keys and values": "kv", "keys": "k", "values": "v"}.items():
            yield f"the {what} of group {one}", partial(changed, sides=sides, change=partial(_of_group, group=one))
        for other in range(one + 1, groups):
            yield f"kv groups {one} and {other} exchanged", _exchanged(one, other, "kv")
            yield f"the keys of groups {one} and {other} exchanged", _exchanged(one, other, "k")
            yield f"the values of groups {one} and {other} exchanged", _exchanged(one, other, "v")
    yield (
        "heads take kv groups in turn",
        lambda one: replace(one, group_of=lambda heads, groups: torch.arange(heads) % groups),
    )
    for step, where in ((1, "behind"), (-1, "before")):
        for what, sides in {"the kv group": "kv", "the keys of the group": "k", "the values of the group": "v"}.items():
            yield f"{what} {where}", partial(changed, sides=sides, change=partial(torch.roll, shifts=-step, dims=0))


def _of_group(x: Tensor, group: int) -> Tensor:
    """Keys or values [G, T, D] that are all one group's."""
    return x[[group] * len(x)]


def of_sinks() -> Iterator[tuple[str, Variant]]:
    """Sinks left out, doubled, scaled or another head's."""
    yield "no sink", lambda one: replace(one, sinks=None)
    yield "the sink twice", _sink(lambda held: held + LN2)
    yield "the sink scaled as the scores are", _sink(lambda held: held, scaled=True)
    yield "the sink of the next head", _sink(lambda held: held.roll(-1))
    yield "the sink of the head before", _sink(lambda held: held.roll(1))


def of_heads(heads: int, groups: int, sinks: bool) -> Iterator[tuple[str, Variant]]:
    """One head that is missing, without its sink or with a neighbour's, or with the kv group beside its own."""
    for head in range(heads):
        yield f"head {head} is missing", partial(_shares, change=partial(_none_of, head=head))
        if sinks:
            yield f"head {head} has no sink", _sink(partial(_sink_of, head=head, sink=float("-inf")))
            for other in {head - 1, head + 1} & set(range(heads)):
                yield f"head {head} has the sink of head {other}", _sink(partial(_sink_of, head=head, other=other))
        own = head * groups // heads
        for group in {own - 1, own + 1} & set(range(groups)):
            yield f"head {head} takes kv group {group}", partial(_of_other_group, head=head, group=group)


def _none_of(shares: Tensor, head: int) -> Tensor:
    left = shares.clone()
    left[head] = 0
    return left


def _sink_of(held: Tensor, head: int, sink: float = 0.0, other: int | None = None) -> Tensor:
    """Sinks [N] of which one is another number, or another head's."""
    taken = held.clone()
    taken[head] = sink if other is None else held[other]
    return taken


def _of_other_group(one: Pass, head: int, group: int) -> Pass:
    def taken(heads: int, groups: int) -> Tensor:
        own = one.group_of(heads, groups).clone()
        own[head] = group
        return own

    return replace(one, group_of=taken)


def _low(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.bfloat16().to(dtype).double()  # a device has them in bfloat16 before


def _exchanged(one: int, other: int, sides: str) -> Variant:
    def exchanged(held: Pass) -> Pass:
        order = list(range(len(held.k)))
        order[one], order[other] = other, one
        changed: dict[str, Any] = {side: getattr(held, side)[order] for side in sides}
        return replace(held, **changed)

    return exchanged


def _sink(change: Callable[[Tensor], Tensor], scaled: bool = False) -> Variant:
    def with_sinks(one: Pass) -> Pass:
        sinks = one.sinks if one.sinks is not None else one.q.new_zeros(len(one.q))
        return replace(one, sinks=change(sinks) * (one.q.shape[-1] ** -0.5 if scaled else 1.0))

    return with_sinks
