"""What several layers give if the same thing in each were another: for a port that shows no layer between them.

All layers of the segment run again, each with the same change, from what entered the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.references.products import attention, gated_changes
from parity.references.products.attention.changes import of_heads
from parity.references.products.attention.operands import Pass, Variant
from parity.references.products.attention.projections import Anew, Projected, of_projections
from parity.references.products.expert_shares import other_shares
from parity.references.products.halves import AS_IT_IS, HalfChange, SecondHalf, of_norms, of_router
from parity.references.products.product import Changed, Made, Product
from parity.references.products.whole_layers import LayerPasses, layer_passes, unchanged


@dataclass(frozen=True)
class LayerChange:
    """One change of a layer: of what attention's operands are, or of its second half."""

    anew: Anew = unchanged
    half: HalfChange = AS_IT_IS


MANY = 256
"""Rows of a pass with which every other weighing of experts is listed: some are of so many rows before."""

Segment = Sequence[tuple[LayerPasses, SecondHalf, LayerChange]]


def segment(loop: Any, stages: Sequence[str], stack: ExitStack) -> Made:
    """The rows that leave the last of these layers, and what they would be under one change in each layer.

    Args:
        stages: what leaves each layer, the first one first.

    Raises:
        LookupError: as `layer_passes`.
    """
    watched = [layer_passes(loop, stage, stack) for stage in stages]

    def made() -> list[Product]:
        try:
            passes = [one() for one in watched]
        except LookupError:
            return []
        names = [str(one.number) for one in passes]
        whose = f"in layers {', '.join(names[:-1])} and {names[-1]} alike"
        starts = np.cumsum([0, *(len(one.stream) for one in passes[0].passes)])
        halves = [SecondHalf.of(one.layer, one.side) for one in passes]

        def under(changes: Sequence[LayerChange]) -> Segment:
            return [(one, half, change) for one, half, change in zip(passes, halves, changes, strict=True)]

        def others() -> Iterator[tuple[str, Changed]]:
            for says, changes in _in_each(loop, passes, halves):
                yield f"{whose}: {says}", partial(_rows, under(changes), starts)

        rows = _rows(under([LayerChange()] * len(passes)), starts, slice(None))
        return [Product(rows, None, (), others)]

    return made


def _rows(of: Segment, starts: Any, rows: Any) -> Any:
    """What leaves a segment at some rows [r, H]: of the passes that have them."""
    numbers = np.arange(starts[-1])[rows]
    places = np.searchsorted(starts, numbers, side="right") - 1
    out = np.empty((len(numbers), of[0][0].passes[0].stream.shape[1]))
    for place in np.unique(places):
        held = places == place
        out[held] = _leaving(of, int(place))[numbers[held] - starts[place]].numpy()
    return out


def _leaving(of: Segment, place: int) -> Tensor:
    """What leaves a segment in one pass, [S, H]."""
    x = of[0][0].passes[place].stream
    for layer, half, change in of:
        x = half.under(change.half)(x + layer.attended(layer.passes[place], x, change.anew))
    return x


def _in_each(
    loop: Any, passes: Sequence[LayerPasses], halves: Sequence[SecondHalf]
) -> Iterator[tuple[str, list[LayerChange]]]:
    """The changes that all layers have, by what they say."""
    for kind in (_of_attention, _of_projections, _of_second):
        first, *rest = (dict(kind(loop, one, half)) for one, half in zip(passes, halves, strict=True))
        for says, change in first.items():
            if all(says in other for other in rest):
                yield says, [change, *(other[says] for other in rest)]


Changes = Iterator[tuple[str, LayerChange]]


def _of_attention(loop: Any, one: LayerPasses, half: SecondHalf) -> Changes:
    held = one.passes[0].held
    for says, variant in attention.variants(len(held.k), held.sinks is not None):
        yield says, LayerChange(partial(_operands, variant))
    for says, variant in of_heads(len(held.q), len(held.k), held.sinks is not None):
        yield says, LayerChange(partial(_operands, variant))


def _of_projections(loop: Any, one: LayerPasses, half: SecondHalf) -> Changes:
    for says, anew in of_projections(loop, one.side, one.number):
        yield says, LayerChange(anew)


def _of_second(loop: Any, one: LayerPasses, half: SecondHalf) -> Changes:
    changes = [*of_norms(one.layer, ()), *(of_router(one.layer, ()) if half.router is not None else ())]
    changes += [(says, HalfChange(inner=variant)) for says, variant in gated_changes.variants(half.fed, *half.act)]
    changes += _of_shares(len(half.down)) if half.router is not None else []
    yield from ((says, LayerChange(half=change)) for says, change in changes)


def _of_shares(experts: int) -> Iterator[tuple[str, HalfChange]]:
    """Other weights of experts, and experts and their biases that are missing or count twice."""
    for says, _ in other_shares(torch.eye(MANY, dtype=torch.float64)):
        yield says, HalfChange(shares=partial(_shares, says))
    for whose, some in _of_experts(experts):
        for how, times in (("is missing", 0.0), ("counts twice", 2.0)):
            columns, rows = partial(_columns, some=some, times=times), partial(_times, some=some, times=times)
            yield f"the output of {whose} {how}", HalfChange(shares=columns)
            yield f"the down bias of {whose} {how}", HalfChange(bias=rows)


def _of_experts(count: int) -> Iterator[tuple[str, slice]]:
    """Each expert, and all of them."""
    yield from ((f"expert {expert}", slice(expert, expert + 1)) for expert in range(count))
    yield "every expert", slice(count)


def _columns(share: Tensor, some: slice, times: float) -> Tensor:
    """Shares [R, E] of which some experts' are so many times as large."""
    return _times(share.T, some, times).T


def _times(rows: Tensor, some: slice, times: float) -> Tensor:
    changed = rows.clone()
    changed[some] *= times
    return changed


def _operands(variant: Variant, one: Pass, maker: Projected) -> Pass:
    return variant(one)


def _shares(says: str, share: Tensor) -> Tensor:
    """Other weights of experts; none that can be made of so few rows."""
    return dict(other_shares(share)).get(says, share).to(share)
