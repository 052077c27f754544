"""Masks that are one row off, with what stands at the edge; norms of heads; on either side."""

from __future__ import annotations

from functools import partial

from parity.references.hypotheses.attention import MASK_FIX, MOVED, OUT, both_sides
from parity.references.hypotheses.catalogue import Fit, Mutations

edges, attention = Mutations("edges"), Mutations("attention")

LAYERED = dict(values=("all",), layered=True, fix=MASK_FIX)


def _edges():
    for id_, first, says in (
        ("attn-causal-strict", "zero", "is zero"),
        ("attn-causal-strict-mean", "mean", "is the mean of the pass' rows"),
    ):
        says = f"a row does not see itself; the first one sees nothing, its attention {says}"
        yield from both_sides(id_, says, OUT, partial(edges.strict, first=first), **LAYERED)
    says = "a row sees the next row, the last one the empty slot behind the end"
    yield from both_sides("attn-causal-next-slot", says, OUT, edges.next_row, **LAYERED)
    yield from both_sides(
        "attn-empty-slots",
        "all rows see empty slots behind the end: {value}",
        OUT,
        edges.empty_slots,
        values=("to the context's end", 1),
        fit=Fit(1, 131072, clean=None, log=True, whole=True),
        fix="the mask bounds keys by the length, not by the cache's size",
    )
    for id_, where in (("attn-heads-normed", "before"), ("attn-heads-normed-late", "behind")):
        says = f"q and k of each head are normed {where} the rotation"
        fix = "these models have no norm of q and k"
        yield from both_sides(id_, says, MOVED, partial(edges.heads_normed, where=where), **LAYERED | {"fix": fix})


HYPOTHESES = tuple(_edges())
