"""What attention gives at some rows if keys, heads or roundings were others: small changes of one equation, each alone.

A variant is a function of the operands of one pass, so that many of them cost no run: q [N, S, D], k and v [G, T, D],
which keys are seen [S, T] and the sinks [N], in float64, to what is mixed [S, N, D].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.references.hypotheses.masks import Attend, attending, seen_keys
from parity.references.hypotheses.mutating import layers_of
from parity.references.products.attention.changes import of_groups, of_operands, of_rotations, of_scores, of_sinks
from parity.references.products.attention.keys import keys_of, sequence
from parity.references.products.attention.layouts import of_layouts
from parity.references.products.attention.masks import of_masks
from parity.references.products.attention.operands import Pass, Variant
from parity.references.products.attention.projections import Anew, Projected, norms_before, of_projections, weights_of
from parity.references.products.attention.scaled import of_scales, of_shares
from parity.references.products.attention.sink_column import of_sink_columns
from parity.references.products.attention.sums import of_sums
from parity.references.products.attention.tiles import of_tiles
from parity.references.products.product import Changed, Made, Product, entered, linear, projections
from parity.references.products.rotated import Rotation, turned_by


def variants(groups: int, sinks: bool) -> Iterator[tuple[str, Variant]]:
    """Each variant with what it says, for so many groups of heads, with or without sinks."""
    yield from of_masks()
    yield from of_operands()
    yield from of_scores()
    yield from of_rotations()
    yield from of_groups(groups)
    yield from of_layouts()
    yield from of_tiles()
    yield from of_sinks() if sinks else ()
    yield from of_sink_columns() if sinks else ()
    yield from of_shares()
    yield from of_scales()
    yield from of_sums()


def passes(loop: Any, side: str, number: int, stack: ExitStack, most: int | None = None) -> list[Pass]:
    """The operands of a layer's attention from now on, pass by pass; of passes of at most so many key numbers."""
    held: list[Pass] = []
    attention = layers_of(loop, side, number)[0][1].self_attn
    sinks = attention.sinks.detach().double() if side == "target" else None

    def change(attend: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        if most is None or k.numel() <= most:
            first, second, third = (x[0].detach().double() for x in (q, k, v))
            seen = seen_keys(mask)[0, 0][..., : k.shape[2]].expand(q.shape[2], -1)
            held.append(Pass(first, second, third, seen, sinks))
        return attend(q, k, v, mask)

    stack.enter_context(attending(loop, number, change, side))
    return held


NEAR = (-1, 1, -2, 2)
"""How many layers away one may be whose cache is taken for a layer's own: two, as every other has a window."""

FEW = 1 << 21
"""Numbers of a pass's keys, 4,096 positions of 20b's, up to which other layers' caches are kept beside."""


def _near(loop: Any, side: str, number: int, stack: ExitStack) -> dict[str, list[Pass]]:
    """The operands of the layers near one, by what they are called."""
    layers = dict(layers_of(loop, side, "all"))
    there = [number + step for step in NEAR if number + step in layers]
    return {f"layer {other}": passes(loop, side, other, stack, FEW) for other in there}


def _of_layers(own: Sequence[Pass], near: dict[str, list[Pass]]) -> Iterator[tuple[str, list[Variant]]]:
    """Keys, values or both of another layer, what its heads mix, or another pass' mask, as a change of each pass."""
    for whose, held in near.items():
        alike = len(held) == len(own) and all(
            one.k.shape == other.k.shape for one, other in zip(own, held, strict=True)
        )
        for what, sides in {"keys": "k", "values": "v", "keys and values": "kv"}.items() if alike else ():
            yield f"the {what} of {whose}", [partial(_of_layer, other=other, sides=sides) for other in held]
        if alike:
            yield f"what the heads of {whose} mixed", [partial(_instead, other=other) for other in held]
    yield "the mask of the pass before", _masks_before(own)


def _instead(one: Pass, other: Pass) -> Pass:
    return other


def _of_layer(one: Pass, other: Pass, sides: str) -> Pass:
    changed: dict[str, Any] = {side: getattr(other, side) for side in sides}
    return replace(one, **changed)


def mixed_at(passes: Sequence[Pass], changes: Sequence[Variant], rows: Any) -> Tensor:
    """What passes mix under a change of each, [r, N * D] at some of all their rows: no other row is mixed."""
    starts = np.cumsum([0, *(len(one.seen) for one in passes)])
    numbers = np.arange(starts[-1])[rows]
    order = np.argsort(numbers, kind="stable")
    found = np.searchsorted(numbers[order], starts)
    mixed = [
        change(one).mixed(torch.from_numpy(numbers[order[first:last]] - start)).flatten(1)
        for one, change, start, first, last in zip(passes, changes, starts[:-1], found[:-1], found[1:], strict=True)
        if last > first
    ]
    return torch.cat(mixed)[torch.from_numpy(np.argsort(order, kind="stable"))]


def _masks_before(held: Sequence[Pass]) -> list[Variant]:
    """Each pass under the mask of the one before, which has fewer keys; the prefill's mask is taken for no other's."""
    changes: list[Variant] = [lambda one: one] * 2
    for one, other in zip(held[2:], held[1:], strict=False):
        more = one.seen.shape[1] - other.seen.shape[1]
        alike = len(one.seen) == len(other.seen) and more >= 0
        seen = torch.nn.functional.pad(other.seen, (0, more)) if alike else one.seen
        changes.append(partial(replace, seen=seen))
    return changes[: len(held)]


def _anew(anew: Anew, maker: Projected, one: Pass) -> Pass:
    return anew(one, maker)


def heads(loop: Any, side: str, number: int, layer: Any, stack: ExitStack) -> Made:
    """Heads by the output projection."""
    held, seen = passes(loop, side, number, stack), entered(layer.self_attn.o_proj, stack)
    known, near = sequence(loop, side, stack), _near(loop, side, number, stack)
    tables, fed = turned_by(loop, side, number, stack), entered(layer.self_attn.q_proj, stack)
    before = [entered(norm, stack) for norm in norms_before(layer).values()]

    def made() -> list[Product]:
        prompt, rotations = len(held[0].seen), Rotation.of(tables)
        if len(rotations) != len(held):
            raise LookupError("keys that are turned apart from their queries, as DFlash's context is")
        turned = [replace(one, rotation=of, prompt=prompt) for one, of in zip(held, rotations, strict=True)]
        weights = weights_of(layer.self_attn)
        known_streams = all(len(one) == len(fed) for one in before)
        streams = [*zip(*before, strict=True)] if known_streams else [()] * len(fed)
        makers = [
            Projected(x.double(), weights, *table, tuple(one.double() for one in into))
            for x, table, into in zip(fed, tables, streams, strict=True)
        ]
        size, count, groups = held[0].q.shape[2], len(held[0].q), len(held[0].k)
        parts = [(f"head {head}", head * size, (head + 1) * size) for head in range(count)]

        def others() -> Iterator[tuple[str, Changed]]:
            for says, variant in variants(groups, held[0].sinks is not None):
                yield says, partial(mixed_at, turned, [variant] * len(turned))
            for says, changes in _of_layers(turned, near):
                yield says, partial(mixed_at, turned, changes)
            for says, anew in of_projections(loop, side, number):
                yield says, partial(mixed_at, turned, [partial(_anew, anew, maker) for maker in makers])

        beside = projections(loop, side, number, "o_proj")
        (product,) = linear(layer.self_attn.o_proj, torch.cat(seen), parts, others, beside, "the bias of o_proj")
        return [replace(product, keys=partial(keys_of, turned, known))]

    return made
