"""Partial sums of row-parallel projections that are not added up over the ranks, or added up another way.

A row-parallel projection shares out its input columns: a rank's own make a partial sum, and the sum over the
ranks, with the bias once, is the projection's output.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn import functional as F

from parity.references.mutations import layers_of, reweighted, together, wrapped
from parity.references.mutations.ranks import head_counts, share_of
from parity.references.mutations.stored import FORMS

Reduce = Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor]
"""Partial sums in rank order and the bias to a projection's output."""


def reduced(loop: Any, ranks: int, side: str, part: str, reduce: Callable[[int], Reduce]) -> AbstractContextManager:
    """`reduce(layer)` makes the outputs of attention's projection, of the experts' or MLP's (`part` ffn), or of all."""
    contexts = []
    for number, layer in layers_of(loop, side):
        if part in ("attn", "all"):
            share_of(head_counts(loop, side)[0], ranks, "heads")
            contexts.append(_linear(layer.self_attn.o_proj, ranks, reduce(number)))
        if part in ("ffn", "all"):
            one = _experts(layer.mlp.experts, ranks, reduce(number)) if side == "target" else None
            contexts.append(one or _linear(layer.mlp.down_proj, ranks, reduce(number)))
    return together(contexts)


def _linear(projection: torch.nn.Linear, ranks: int, reduce: Reduce) -> AbstractContextManager:
    share = share_of(projection.in_features, ranks, "columns")

    def forward(inner, x):
        parts = zip(x.split(share, -1), projection.weight.split(share, 1), strict=True)
        bias = x.new_zeros(()) if projection.bias is None else projection.bias
        return reduce([F.linear(part, weight) for part, weight in parts], bias)

    return wrapped(projection, "forward", forward)


def _experts(experts: torch.nn.Module, ranks: int, reduce: Reduce) -> AbstractContextManager:
    """Every rank has its share of every expert's intermediate columns; a layer's experts are reduced together."""
    share = share_of(experts.down_proj.shape[1], ranks, "intermediate columns")

    def forward(inner, hidden, chosen, weights):
        down, bias = experts.down_proj.data, experts.down_proj_bias.data
        owner = (torch.arange(down.shape[1]) // share)[:, None]
        sums = []
        for rank in range(ranks):
            with reweighted(experts.down_proj, down * (owner == rank)), reweighted(experts.down_proj_bias, 0 * bias):
                sums.append(inner(hidden, chosen, weights))
        return reduce(sums, (weights[..., None] * bias[chosen]).sum(1))

    return wrapped(experts, "forward", forward)


def alone(loop: Any, value: tuple[int, int], side: str, part: str) -> AbstractContextManager:
    """One rank's partial sum goes on: `value` = (rank, ranks)."""
    rank, ranks = value
    return reduced(loop, ranks, side, part, lambda _: lambda sums, bias: sums[rank] + bias)


def scaled(loop: Any, ranks: int, side: str, part: str, how: str, biased: bool = False) -> AbstractContextManager:
    """The sum over the ranks "averaged", or "repeated" (added up once for every rank); the bias with it if `biased`."""
    factor = 1 / ranks if how == "averaged" else ranks

    def reduce(sums, bias):
        total = torch.stack(sums).sum(0)
        return (total + bias) * factor if biased else total * factor + bias

    return reduced(loop, ranks, side, part, lambda _: reduce)


def narrowed(loop: Any, value: tuple[str, int], side: str, part: str) -> AbstractContextManager:
    """Partial sums are added up in a narrower form, `value` = (form, ranks): every rank's, its own as well."""
    form, ranks = value
    return reduced(
        loop, ranks, side, part, lambda _: lambda sums, bias: torch.stack([*map(FORMS[form], sums)]).sum(0) + bias
    )


def stale(loop: Any, value: tuple[int, int], side: str, part: str, first: str) -> AbstractContextManager:
    """One rank's partial sum, `value` = (rank, ranks), is that of the layer before.

    `first` says what it is in the first layer: "zero", "own", or the "last" layer's of the pass before, zero where that
    one had other rows.
    """
    rank, ranks = value
    held: list[torch.Tensor] = []

    def of(layer: int) -> Reduce:
        def reduce(sums, bias):
            own = sums[rank]
            there = bool(held) and held[0].shape == own.shape and (layer > 0 or first == "last")
            before = held[0] if there else own if first == "own" else torch.zeros_like(own)
            held[:] = [own]
            return torch.stack([*sums[:rank], before, *sums[rank + 1 :]]).sum(0) + bias

        return reduce

    return reduced(loop, ranks, side, part, of)
