"""Partial sums of row-parallel projections that are not added up over the ranks, or added up another way.

A row-parallel projection shares out its input columns: a rank's own make a partial sum, and the sum over the
ranks, with the bias once, is the projection's output.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

from parity.references.hypotheses.caches import FORMS
from parity.references.hypotheses.catalogue import SIDES, Family, Mutation
from parity.references.hypotheses.lazily import F, Loop, Tensor, torch
from parity.references.hypotheses.mutating import Layer, head_counts, layers_of, reweighted, together
from parity.references.hypotheses.ranks import ONE_OF, SHARDS, SPLITS, share_of
from parity.references.points import foreign

Reduce = Callable[[list[Tensor], Tensor], Tensor]
"""Partial sums in rank order and the bias to a projection's output."""

SUM_FIX = "the all-reduce behind row-parallel projections: once each, over all ranks, waited for, the bias outside it"
NARROW = ("float8 e4m3", "float8 e5m2", "int8 per row", "bfloat16")
SUMMED = "bfloat16, and their sum"
"""An all-reduce of bfloat16 tensors gives bfloat16: what it hands back is rounded once more."""
ADDED = ("behind", "on the first rank", "in parts")
"""Where a bias is added: behind the reduction, to one partial sum, or a part of it to each."""


def reduced(loop: Loop, ranks: int, side: str, part: str, reduce: Callable[[int], Reduce]) -> Mutation:
    """`reduce(layer)` makes the outputs of attention's projection, of the experts' or MLP's (`part` ffn), or of all."""
    contexts = []
    for number, layer in layers_of(loop, side):
        if part in ("attn", "all"):
            share_of(head_counts(loop, side)[0], ranks, "heads")
            contexts.append(_linear(layer.self_attn.o_proj, ranks, reduce(number)))
        if part in ("ffn", "all") and side == "target":
            contexts.append(_experts(layer.mlp.experts, ranks, reduce(number)))
        elif part in ("ffn", "all"):
            contexts.append(_linear(layer.mlp.down_proj, ranks, reduce(number)))
    return together(contexts)


def _linear(projection: Layer, ranks: int, reduce: Reduce) -> Mutation:
    share = share_of(projection.in_features, ranks, "columns")

    def forward(inner: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        parts = zip(x.split(share, -1), projection.weight.split(share, 1), strict=True)
        bias = x.new_zeros(()) if projection.bias is None else projection.bias
        return reduce([F.linear(part, weight) for part, weight in parts], bias)

    return foreign(projection, "forward").around(forward)


def _experts(experts: Layer, ranks: int, reduce: Reduce) -> Mutation:
    """Every rank has its share of every expert's intermediate columns; a layer's experts are reduced together."""
    share = share_of(experts.down_proj.shape[1], ranks, "intermediate columns")

    def forward(inner: Callable[..., Tensor], hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        down, bias = experts.down_proj.data, experts.down_proj_bias.data
        owner = (torch.arange(down.shape[1]) // share)[:, None]
        sums = []
        for rank in range(ranks):
            with reweighted(experts.down_proj, down * (owner == rank)), reweighted(experts.down_proj_bias, 0 * bias):
                sums.append(inner(hidden, ids, weights))
        return reduce(sums, (weights[..., None] * bias[ids]).sum(1))

    return foreign(experts, "forward").around(forward)


def alone(loop: Loop, value: tuple[int, int], side: str, part: str) -> Mutation:
    """One rank's partial sum is the output: `value` = (rank, ranks)."""
    rank, ranks = value
    return reduced(loop, ranks, side, part, lambda _: lambda sums, bias: sums[rank] + bias)


def scaled(loop: Loop, ranks: int, side: str, part: str, averaged: bool, biased: bool = False) -> Mutation:
    """The sum over the ranks `averaged`, or added up once for every rank; the bias with it if `biased`."""
    factor = 1 / ranks if averaged else ranks

    def reduce(sums: list[Tensor], bias: Tensor) -> Tensor:
        total = torch.stack(sums).sum(0)
        return (total + bias) * factor if biased else total * factor + bias

    return reduced(loop, ranks, side, part, lambda _: reduce)


def narrowed(loop: Loop, value: tuple[str, int, str], side: str, part: str) -> Mutation:
    """Partial sums are added up in a narrower form: every rank's, its own as well.

    `value` = (form, ranks, where the bias is added, one of `ADDED`); the form is of `FORMS`, or `SUMMED`.
    """
    form, ranks, where = value

    def reduce(sums: list[Tensor], bias: Tensor) -> Tensor:
        travel = torch.stack(sums)
        if where == "on the first rank":
            travel[0] += bias
        elif where == "in parts":
            travel += bias / ranks
        total = torch.stack([*map(FORMS["bfloat16" if form == SUMMED else form], travel)]).sum(0)
        total = FORMS["bfloat16"](total) if form == SUMMED else total
        return total + bias if where == "behind" else total

    return reduced(loop, ranks, side, part, lambda _: reduce)


def stale(loop: Loop, value: tuple[int, int], side: str, part: str, first: str) -> Mutation:
    """One rank's partial sum, `value` = (rank, ranks), is that of the layer before.

    `first` says what it is in the first layer: "zero", "own", or the "last" layer's of the pass before, zero where that
    one had other rows.
    """
    rank, ranks = value
    held: list[Tensor] = []

    def of(layer: int) -> Reduce:
        def reduce(sums: list[Tensor], bias: Tensor) -> Tensor:
            own = sums[rank]
            there = bool(held) and held[0].shape == own.shape and (layer > 0 or first == "last")
            before = held[0] if there else own if first == "own" else torch.zeros_like(own)
            held[:] = [own]
            return torch.stack([*sums[:rank], before, *sums[rank + 1 :]]).sum(0) + bias

        return reduce

    return reduced(loop, ranks, side, part, of)


sums = Family(fix=SUM_FIX, values=SPLITS)
PARTS = {"attn": "o_proj", "ffn": "down_proj", "all": "o_proj and down_proj"}

for side, part in product(SIDES, PARTS):
    stages = (f"{{side}}.layers.*.{'ffn' if part == 'ffn' else 'attn'}_out",)
    add = partial(sums.both, sides=(side,), stages=stages)
    id, theirs = "tp-{side}" if part == "all" else f"tp-{part}", f"the ranks' partial sums of {PARTS[part]}"
    add(
        f"{id}-not-reduced",
        f"{theirs} are not added up, one rank's is taken as the sum: (rank, ranks) {{value}}",
        values=ONE_OF,
        seen=SHARDS,
    )(partial(alone, part=part))
    add(f"{id}-averaged", f"{theirs} are averaged over {{value}} ranks, not added")(
        partial(scaled, part=part, averaged=True)
    )
    add(f"{id}-repeated", f"{theirs} are added up {{value}} times over")(partial(scaled, part=part, averaged=False))
    if part == "all":
        continue
    add(
        f"{id}-narrowed",
        f"{theirs} travel in another form: (form, ranks, the bias added) {{value}}",
        values=tuple(product((*NARROW, SUMMED), SPLITS, ADDED if side == "target" else ADDED[:1])),
        fix="the dtype of the all-reduce",
    )(partial(narrowed, part=part))
    for end, first, says in (
        ("", "zero", "nothing in the first layer"),
        ("-own", "own", "its own in the first layer"),
        ("-around", "last", "in the first layer that of the last one of the pass before"),
    ):
        add(
            f"{id}-stale{end}",
            f"{theirs}: one rank's is that of the layer before, {says}: (rank, ranks) {{value}}",
            values=((1, 2), (0, 2), (1, 4), (3, 4)),
            fix="the barrier between a rank's projection and the all-reduce of it",
            seen=("class of missing barriers",),
        )(partial(stale, part=part, first=first))

for id, averaged, says in (("averaged", True, "averaged over"), ("repeated", False, "added up once for each of")):
    sums.both(
        f"tp-attn-{id}-biased",
        f"the partial sums of o_proj, the bias among them, are {says} {{value}} ranks",
        sides=("target",),
        stages=("target.layers.*.attn_out",),
    )(partial(scaled, part="attn", averaged=averaged, biased=True))
