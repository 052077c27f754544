"""The keys that single rows attend to: their scores, values, positions and the tokens that they are of."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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
    """

    scores: Any
    values: Any
    seen: Any
    sinks: Any | None
    positions: Any
    position: int
    ids: Any


def sequence(loop: Any, side: str, stack: ExitStack) -> list[Tensor]:
    """The ids [rows] that each pass of a model embeds from now on."""
    model = loop.target.model.model if side == "target" else loop.drafter
    return entered(model.embed_tokens, stack)


def keys_of(passes: Sequence[Pass], ids: Sequence[Tensor], numbers: Sequence[int]) -> list[RowKeys]:
    """The keys of some rows, by their number over all passes."""
    starts = np.cumsum([0, *(len(one.seen) for one in passes)])
    known = _ids_at_keys(passes, ids)
    made = []
    for number in numbers:
        which = int(np.searchsorted(starts, number, side="right")) - 1
        made.append(_row(passes[which], number - int(starts[which]), known[which]))
    return made


def _ids_at_keys(passes: Sequence[Pass], ids: Sequence[Tensor]) -> list[Any]:
    """Of each pass the ids [T] at its keys: what earlier passes left, then its own."""
    held, made = torch.zeros(0, dtype=torch.int64), []
    for number, one in enumerate(passes):
        if len(ids) != len(passes) or len(ids[number]) != len(one.seen) or one.cached > len(held):
            return [np.full(other.seen.shape[1], -1) for other in passes]
        held = torch.cat((held[: one.cached], ids[number].flatten()))
        made.append(held.numpy())
    return made


def _row(one: Pass, row: int, ids: Any) -> RowKeys:
    taken = one.group_of(len(one.q), len(one.k))
    scores = (one.q[:, row, None] @ one.k[taken].transpose(1, 2))[:, 0] * one.q.shape[-1] ** -0.5
    first = one.cached if one.rotation is None else one.rotation.first
    positions = first - one.cached + np.arange(one.seen.shape[1])
    return RowKeys(
        scores=np.pad(scores.numpy(), ((0, 0), (0, 1))),
        values=np.pad(one.v[taken].numpy(), ((0, 0), (0, 1), (0, 0))),
        seen=np.pad(one.seen[row].numpy(), (0, 1)),
        sinks=None if one.sinks is None else one.sinks.numpy(),
        positions=np.append(positions, EMPTY),
        position=int(positions[one.cached + row]),
        ids=np.append(ids, -1),
    )
