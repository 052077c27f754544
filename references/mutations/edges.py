"""Masks that are wrong by one row, with what stands at the edge: the first row, the slot behind the last one."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from parity.references.mutations import NotApplicable, layers_of
from parity.references.mutations.attention import attending, masking, turning


def strict(loop: Any, value: Any, side: str, first: str) -> AbstractContextManager:
    """A row does not see itself. `first` is what the sequence's first row, which then sees nothing, comes to.

    "zero": no weight on any row, nor anything but the sink. "mean": all rows of the pass alike.
    """
    if first == "zero" and side == "target":  # its sink takes all the weight
        return masking(loop, layers_of(loop, side, value), side, lambda seen, distance: seen & (distance != 0))

    def around(attend, q, k, v, mask):
        own = torch.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None] == torch.arange(k.shape[2])
        seen = mask == 0 if mask.is_floating_point() else mask
        nothing = ~(seen & ~own).any(-1, keepdim=True)  # [B, 1, S, 1]
        hidden = torch.finfo(q.dtype).min
        shown = (seen & ~own) | nothing
        out = attend(q, k, v, torch.where(shown, 0.0, hidden).to(q.dtype) if mask.is_floating_point() else shown)
        group = q.shape[1] // v.shape[1]
        edge = v.mean(2, keepdim=True).repeat_interleave(group, 1).transpose(1, 2) * (first == "mean")
        return torch.where(nothing.transpose(1, 2), edge, out)

    return attending(loop, layers_of(loop, side, value), side, around)


def _with_empty_slots(k, v, mask, many: int, seen):
    """`many` slots of zeros behind the keys and values; `seen` [S, many] says which rows see them."""
    k, v = (torch.cat((x, x.new_zeros(*x.shape[:2], many, x.shape[3])), 2) for x in (k, v))
    seen = seen.expand(*mask.shape[:-1], many)
    if mask.is_floating_point():
        seen = torch.where(seen, 0.0, torch.finfo(mask.dtype).min).to(mask.dtype)
    return k, v, torch.cat((mask, seen), -1)


def next_row(loop: Any, value: Any, side: str) -> AbstractContextManager:
    """A row sees the next one; the pass' last row sees the empty slot behind the end."""

    def around(attend, q, k, v, mask):
        rows, keys = q.shape[2], k.shape[2]
        behind = torch.arange(keys) == torch.arange(keys - rows, keys)[:, None] + 1
        mask = torch.where(behind, torch.zeros_like(mask), mask) if mask.is_floating_point() else mask | behind
        last = (torch.arange(rows) == rows - 1)[:, None]
        return attend(q, *_with_empty_slots(k, v, mask, 1, last))

    return attending(loop, layers_of(loop, side, value), side, around)


def empty_slots(loop: Any, many: int | str, side: str) -> AbstractContextManager:
    """All rows see so many empty slots behind the end: a static cache whose mask counts slots instead of rows.

    "to the context's end" takes the context for the cache's size.
    """
    if not isinstance(many, str) and many < 1:
        raise NotApplicable("no slot")

    def around(attend, q, k, v, mask):
        count = loop.max_positions - k.shape[2] if isinstance(many, str) else int(many)
        everyone = torch.ones(q.shape[2], 1, dtype=torch.bool)
        return attend(q, *_with_empty_slots(k, v, mask, max(count, 0), everyone))

    return attending(loop, layers_of(loop, side), side, around)


def heads_normed(loop: Any, value: Any, side: str, where: str) -> AbstractContextManager:
    """q and k of each head through an RMS norm without weight, before or behind the rotation."""

    def normed(x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

    def around(turn, q, k, cos, sin):
        if where == "before":
            return turn(normed(q), normed(k), cos, sin)
        return tuple(map(normed, turn(q, k, cos, sin)))

    return turning(loop, value, side, around)
