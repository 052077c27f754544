"""The sink as a column beside the scores, as many kernels have it: which one is cut off, and where its share goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from parity.references.products.attention.operands import Pass, Variant, softmax


def of_sink_columns() -> Iterator[tuple[str, Variant]]:
    """Shares of the column beside, and a sink whose share a key gets as well."""
    for says, shared in (
        ("each key has the share of the one before, the first that of the sink", partial(_beside, first=True)),
        ("each key has the share of the one behind, the last that of the sink", partial(_beside, first=False)),
        ("each key's share acts on the key before, that of the first on none", partial(_on_another, step=-1)),
        ("each key's share acts on the key behind, that of the last on none", partial(_on_another, step=1)),
        ("the first key has the sink's share as well", partial(_as_well, last=False)),
        ("the last key has the sink's share as well", partial(_as_well, last=True)),
    ):
        yield says, partial(_with, shared=shared)


def _with(one: Pass, shared: Callable[[Tensor, Tensor | None], Tensor]) -> Pass:
    return replace(one, shared=shared)


def _of_sink(shares: Tensor) -> Tensor:
    """What the keys leave to the sink, [N, S, 1]."""
    return (1 - shares.sum(-1, keepdim=True)).clamp(min=0)


def _beside(scores: Tensor, sinks: Tensor | None, first: bool) -> Tensor:
    """The columns begin at the first key that any row of the pass sees: a window leaves out those before it."""
    shares = softmax(scores, sinks)
    sink, held = _of_sink(shares), scores.isfinite().flatten(0, 1).any(0).nonzero().flatten().tolist()
    low, high = held[0], held[-1] + 1
    moved = torch.zeros_like(shares)
    seen = shares[..., low:high]
    moved[..., low:high] = torch.cat((sink, seen[..., :-1]) if first else (seen[..., 1:], sink), dim=-1)
    return moved


def _on_another(scores: Tensor, sinks: Tensor | None, step: int) -> Tensor:
    moved = softmax(scores, sinks).roll(step, -1)
    moved[..., -1 if step < 0 else 0] = 0
    return moved


def _as_well(scores: Tensor, sinks: Tensor | None, last: bool) -> Tensor:
    shares = softmax(scores, sinks)
    at = torch.where(scores.isfinite(), torch.arange(scores.shape[-1]), -1 if last else scores.shape[-1])
    key = (at.amax(-1, keepdim=True) if last else at.amin(-1, keepdim=True)).clamp(0, scores.shape[-1] - 1)
    return shares.scatter_add(-1, key, _of_sink(shares))
