"""What a stage's rows are a product of, and how a module is watched for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parity.references.hypotheses.mutating import entering

FLOATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
"""Formats of eight bits that values are kept in by mistake."""

Parts = Sequence[tuple[str, int, int]]
"""Names of runs of columns: (name, first, behind the last)."""


Made = Callable[[], "list[Product]"]
"""Makes the products once the run ended."""


@dataclass(frozen=True)
class Product:
    """What a stage's rows are a product of.

    Attributes:
        x: what enters, float64 [R, D], R rows in the stage's order.
        weight: float32 [C, D]: a head's is large. None where the stage is no product, and `others` are its rows.
        parts: names of runs of columns of D: (name, first, behind the last).
        others: what would enter under small changes, as (what is changed, x [R, D]), made as they are asked for.
        back: from the stage's rows [r, C] and their numbers [r] to the rows of the product [r, C], where something lies
            between them; NaN where that is not found. None where they are the same.
    """

    x: Any
    weight: Any | None
    parts: Parts
    others: Callable[[], Iterator[tuple[str, Any]]] = lambda: iter(())
    back: Callable[[Any, Any], Any] | None = None


def entered(module: Any, stack: ExitStack) -> list[Tensor]:
    """What enters a module from now on, [rows of a call, D] each."""
    seen: list[Tensor] = []
    stack.enter_context(
        entering(module, lambda x: seen.append(x.detach().flatten(0, -2 if x.is_floating_point() else -1)))
    )
    return seen


def linear(
    module: Any, x: Tensor, parts: Parts = (), others: Callable[[], Iterator[tuple[str, Tensor]]] = lambda: iter(())
) -> list[Product]:
    weight, width, named = module.weight.detach(), x.shape[1], list(parts)
    bias = getattr(module, "bias", None)

    def whole(x: Tensor) -> Any:
        ones = x.new_ones(len(x), 1 if bias is not None else 0)
        return torch.cat((x, ones), dim=1).double().numpy()

    if bias is not None:
        weight = torch.cat((weight, bias.detach()[:, None]), dim=1)
        named.append(("the bias", width, width + 1))
    return [Product(whole(x), weight.numpy(), tuple(named), lambda: ((says, whole(x)) for says, x in others()))]
