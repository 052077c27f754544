"""New rows behind rejected ones that a rollback left in the cache, each at its own position."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from parity.references.hypotheses.caches import KV
from parity.references.hypotheses.catalogue import EVERY, ROWS, Family, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.masks import OUT, masking
from parity.references.hypotheses.mutating import Layer, drafter_layers, together
from parity.references.hypotheses.rolled_back import held
from parity.references.hypotheses.rope import at_positions
from parity.references.hypotheses.starting import handing_over
from parity.references.points import replaced

Pair = tuple[Tensor, Tensor]

ALL, AS_EMITTED = "all rows", "as many rows as were emitted"
ALONE = "as many rows as were emitted, and the stale ones behind them outlast what is put back"

stale = Family(
    stages=(*KV, *OUT),
    values=(ALL, AS_EMITTED, ALONE),
    fix="rollback slices the sequence axis, and the mask compares positions: a new row's slot is its position",
    seen=("NKIPy PR 63",),
    cost=2,
)


def behind_stale(loop: Loop, given: str, side: str, by_position: bool) -> Mutation:
    """A rollback that lowers the length at most, in a cache that appends.

    A mask `by_position` lets a row see the slots up to its position: it hides the row itself behind the stale ones.
    """

    def length() -> int:
        return loop.state.length if side == "target" else loop.state.draft_length

    def count() -> int:
        return held(loop, side) if given == ALL else length()

    def seen(mask: Tensor, distance: Tensor, verifying: bool) -> Tensor:
        behind = int(distance[0, 0]) - (own[0] if side == "drafter" else length())  # the stale rows
        if not (verifying and by_position and behind > 0):
            return mask
        return torch.cat((mask[..., behind:], torch.zeros_like(mask[..., :behind])), -1)

    own = [0]
    kept = _appending(loop, own) if side == "drafter" else _growing(loop)
    return together((*kept, masking(loop, "all", seen, side), handing_over(loop, side, count, whole=given != ALONE)))


def _growing(loop: Loop) -> tuple[Mutation, ...]:
    """The target's cache is never cut; its rows rotate by their positions."""
    own = at_positions(loop, "target", lambda places: places - places[:, :1] + loop.state.length)
    return loop.target.crop.around(lambda inner, length: None), own


def _appending(loop: Loop, own: list[int]) -> tuple[Mutation, ...]:
    """The drafter's cache is never cut, and written at its end, whatever the slots say: `own` is a pass' first one."""

    def remember(inner: Callable[..., Pair], k: Tensor, v: Tensor, cache: Layer) -> Pair:
        with replaced(cache, "start", before[0]):
            return inner(k, v, cache)

    before = [0]

    def mask(inner: Callable[..., Tensor], slots: Tensor, committed: int) -> Tensor:
        before[:], own[:] = [held(loop, "drafter")], [int(slots[0])]
        return inner(slots - slots[0] + before[0], committed)

    def commit(inner: Callable[[int], None], emitted: int) -> None:
        with loop.state.cache.crop.around(lambda inner, length: None):
            inner(emitted)

    writes = [layer.self_attn.remember.around(remember) for _, layer in drafter_layers(loop)]
    return (*writes, loop.mask.around(mask), loop.commit.around(commit))


STALE = "rejected rows stay, new ones go behind them at their own positions and see the slots up to their {}; handed "
STALE += "over are {{value}}"
for id, limit in (("rollback-behind-stale", "slot"), ("rollback-behind-stale-by-position", "position")):
    stale.both(id, STALE.format(limit), drafters={"target": EVERY, "drafter": ROWS})(
        partial(behind_stale, by_position=limit == "position")
    )
