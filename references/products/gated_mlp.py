"""A Llama layer's gated MLP: its inner activation by its down projection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.references.products.activations import swiglu
from parity.references.products.gated import Gated, Variant, of_earlier_rows, with_other
from parity.references.products.gated_changes import variants
from parity.references.products.norms import behind_attention
from parity.references.products.product import (
    Changed,
    Made,
    Product,
    entered,
    linear,
)


def mlp(loop: Any, side: str, number: int, layer: Any, stack: ExitStack) -> Made:
    """A gated MLP's inner activation by its down projection."""
    held = layer.mlp
    rows, seen = entered(held, stack), entered(held.down_proj, stack)
    before = behind_attention(layer, (), stack)

    def made() -> list[Product]:
        gate, up = (side.weight.detach().double()[None] for side in (held.gate_proj, held.up_proj))
        gated = Gated(torch.cat(rows).double(), gate, up, None, None, swiglu)

        def others() -> Iterator[tuple[str, Changed]]:
            for says, variant in variants(gated):
                yield says, partial(_inner_of_one, gated, variant)
            for says, late in of_earlier_rows(gated):
                yield says, partial(_inner_of_one, late, with_other)
            for says, other in before()[0].others():
                yield f"{says} for gate and up", partial(_inner_of_rows, gated, other)

        return linear(held.down_proj, torch.cat(seen), (), others)

    return made


def _inner_of_one(gated: Gated, variant: Variant, rows: Any) -> Tensor:
    return variant(gated.at(rows)).inner()[:, 0]


def _inner_of_rows(gated: Gated, made: Changed, rows: Any) -> Tensor:
    return replace(gated, x=torch.from_numpy(made(rows))).inner()[:, 0]
