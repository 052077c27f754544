"""The keys that single rows attend to: their scores, values, positions and the tokens that they are of."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.references.products.attention.operands import Pass
from parity.references.products.product import entered

EMPTY = -(1 << 30)
"""The position of a key that holds zeros, and that nobody should see: it stands behind the others."""


@dataclass(frozen=True)
class RowKeys:
    """One row's view of a layer's keys, and of one that holds zeros.

    Attributes:
        scores: float64 [N, T], of every key, seen or not.
        values: float64 [N, T, D], each head's.
        seen: bool [T].
        sinks: float64 [N]; None where there are none.
        positions: int64 [T] of the keys; of the numbers of their slots where no table tells.
        position: the row's own.
        ids: int64 [T], tokens at the keys; -1 where none is known.
        pairs: makes complex [N, T, D / 2] of every key: the real part is what a pair of dimensions adds to its score,
            the angle how far the row's pair is turned from the key's.
        cached: how many of the first keys earlier passes left.
        frequencies: float64 [D / 2], radians a position by which pairs turn; None where no table tells.
    """

    scores: Any
    values: Any
    seen: Any
    sinks: Any | None
    positions: Any
    position: int
    ids: Any
    pairs: Any
    cached: int
    frequencies: Any | None


def sequence(loop: Any, side: str, stack: ExitStack) -> list[Tensor]:
    """The ids [rows] that each pass of a model embeds from now on."""
    model = loop.target.model.model if side == "target" else loop.drafter
    return entered(model.embed_tokens, stack)


def keys_of(passes: Sequence[Pass], ids: Sequence[Tensor], numbers: Sequence[int]) -> list[RowKeys]:
    """The keys of some rows, by their number over all passes; rows of one pass share what they have alike."""
    starts = np.cumsum([0, *(len(one.seen) for one in passes)])
    which = (np.searchsorted(starts, numbers, side="right") - 1).tolist()
    known = _ids_at_keys(passes, ids)
    shared = {place: _shared(passes[place], known[place]) for place in {*which}}
    return [
        _row(passes[place], number - int(starts[place]), shared[place])
        for place, number in zip(which, numbers, strict=True)
    ]


def _ids_at_keys(passes: Sequence[Pass], ids: Sequence[Tensor]) -> list[Any]:
    """Of each pass the ids [T] at its keys: what earlier passes left, then its own."""
    held, made = torch.zeros(0, dtype=torch.int64), []
    for number, one in enumerate(passes):
        if len(ids) != len(passes) or len(ids[number]) != len(one.seen) or one.cached > len(held):
            return [np.full(other.seen.shape[1], -1) for other in passes]
        held = torch.cat((held[: one.cached], ids[number].flatten()))
        made.append(held.numpy())
    return made


def _shared(one: Pass, ids: Any) -> dict[str, Any]:
    """What all rows of a pass have alike."""
    taken = one.group_of(len(one.q), len(one.k))
    first = one.cached if one.rotation is None else one.rotation.first
    return {
        "values": np.pad(one.v[taken].numpy(), ((0, 0), (0, 1), (0, 0))),
        "sinks": None if one.sinks is None else one.sinks.numpy(),
        "positions": np.append(first - one.cached + np.arange(one.seen.shape[1]), EMPTY),
        "ids": np.append(ids, -1),
        "cached": one.cached,
        "frequencies": None if one.rotation is None else one.rotation.frequencies.numpy(),
    }


def _row(one: Pass, row: int, shared: dict[str, Any]) -> RowKeys:
    taken = one.group_of(len(one.q), len(one.k))
    scores = (one.q[:, row, None] @ one.k[taken].transpose(1, 2))[:, 0] * one.q.shape[-1] ** -0.5
    return RowKeys(
        scores=np.pad(scores.numpy(), ((0, 0), (0, 1))),
        seen=np.pad(one.seen[row].numpy(), (0, 1)),
        position=int(shared["positions"][one.cached + row]),
        pairs=partial(_pairs, one, row),
        **shared,
    )


def _pairs(one: Pass, row: int) -> Any:
    """What each pair of one row's dimensions, halves apart, has to do with every key's."""
    taken = one.group_of(len(one.q), len(one.k))
    query, key = (
        torch.complex(*(half.contiguous() for half in side.chunk(2, dim=-1)))
        for side in (one.q[:, row, None], one.k[taken])
    )
    return np.pad((query * key.conj()).numpy() * one.q.shape[-1] ** -0.5, ((0, 0), (0, 1), (0, 0)))
