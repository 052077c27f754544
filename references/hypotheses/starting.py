"""Caches that hold more rows than they hand over, and verify rounds that begin in another slot than the next one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from parity.references.hypotheses.catalogue import Family, Fit, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import NotApplicable, together
from parity.references.hypotheses.rope import at_positions

START_FIX = "the first slot and position of a verify round: the length of the target's cache"

Pair = tuple[Tensor, Tensor]


def sized(x: Tensor, many: int) -> Tensor:
    """The first `many` rows of x [S, G, D], with rows of zeros behind them where it has fewer."""
    return torch.cat((x[:many], x.new_zeros(max(many - len(x), 0), *x.shape[1:])))


def handing_over(loop: Loop, side: str, count: Callable[[], int], whole: bool) -> Mutation:
    """A cache hands over its first `count()` rows, and that number as its length; it may hold more.

    Rows that are loaded replace those, or (`whole`) the cache with all that it holds behind them.
    """

    def cached(inner: Callable[..., Pair], name: str, k: Tensor, v: Tensor) -> Pair:
        if not name.startswith(f"kv.{side}."):
            return inner(name, k, v)
        given, tail = (sized(k, count()), sized(v, count())), (k[count() :], v[count() :])
        back = inner(name, *given)
        if whole and back[0] is not given[0]:
            return back
        return torch.cat((back[0], tail[0])), torch.cat((back[1], tail[1]))

    def tap(inner: Callable[..., Tensor], stage: str, value: Tensor, *rows: int) -> Tensor:
        return inner(stage, torch.tensor([count()]) if stage == f"kv.{side}.length" else value, *rows)

    return together((loop.cached.around(cached), loop.tap.around(tap)))


def begun(loop: Loop, delta: Callable[[], int], counted: int) -> Mutation:
    """Verify rounds write from the slot `delta()` behind the emitted rows on, into a cache that nothing is cut off.

    Slots that were never written hold zeros. Behind a round as many rows as were emitted are handed over, and `counted`
    more.
    """

    def draft(inner: Callable[[], Tensor]) -> Tensor:
        drafts, first = inner(), loop.state.length + delta()
        for layer in range(loop.target.config.num_hidden_layers):
            k, v = (sized(x, first) for x in loop.target.rows(layer))
            loop.target.load(layer, k, v)
        return drafts

    def count() -> int:
        prefilled = len(loop.state.emitted) == 1
        return len(loop.target.rows(0)[0]) if prefilled else loop.state.length + counted

    kept = loop.target.crop.around(lambda inner, length: None)
    return together((kept, loop.draft.around(draft), handing_over(loop, "target", count, whole=False)))


starts = Family(stages=("target.layers.*.q",), values=(1, -1, 2, -2), fix=START_FIX, cost=2)


def started(loop: Loop, delta: int, rotated: bool) -> Mutation:
    """Verify rows written `delta` slots off, and rotated by their slots or by their own positions."""
    if not delta:
        raise NotApplicable("no slot off")
    written = begun(loop, lambda: int(delta), counted=0)
    if rotated:
        return written
    own = at_positions(loop, "target", lambda places: places - places[:, :1] + loop.state.length)
    return together((written, own))


starts(
    "verify-start",
    "target: the rows of a verify round are written and rotated {value:+d} slots off",
    fit=Fit(-8, 64, clean=0, whole=True),
    seen=("NKIPy example",),
)(partial(started, rotated=True))
starts(
    "verify-slot",
    "target: the rows of a verify round are written {value:+d} slots off, and rotated right",
    stages=("target.layers.*.attn_out", "kv.target.*"),
)(partial(started, rotated=False))
