"""What a whole layer gives if something inside it were another: for a port that shows no more than what leaves a layer.

The layer is computed again from what entered it, with one change inside: another attention, a head or an expert left
out, another MLP. Experts are chosen anew behind a changed attention, as they are on a device that chooses for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.references.hypotheses.mutating import layers_of
from parity.references.products import attention, gated_mlp
from parity.references.products.experts import mixture
from parity.references.products.fixed_points import entering
from parity.references.products.halves import Second, SecondHalf, of_norms, of_router
from parity.references.products.product import Changed, Made, Product, entered, given

LED = 48
"""Rows that are led back at the most, evenly chosen."""


def whole_layer(loop: Any, side: str, number: int, layer: Any, stack: ExitStack) -> Made:
    """What leaves a layer, in three ways: its MLP's product, its rows under other attention, and attention's product.

    The last is met by what attention must have given for the layer to end where it did: see `Product.back`.
    """
    attended = attention.heads(loop, side, number, layer, stack)
    fed = (mixture if side == "target" else gated_mlp.mlp)(loop, side, number, layer, stack)
    streams = streams_of(layer, side, stack)
    layers = [(at, other) for at, other in layers_of(loop, side, "all") if at != number]
    beside = [("the first norm", layer.input_layernorm)]
    beside += [(f"layer {at}'s", other.post_attention_layernorm) for at, other in layers]
    routers = [(f"layer {at}", other.mlp.router) for at, other in layers] if side == "target" else []

    def made() -> list[Product]:
        stream, behind = torch.cat(streams).double(), attended()[0]
        weight = np.asarray(behind.weight, np.float64).T
        half = SecondHalf.of(layer, side)
        second = half.under()
        out = torch.from_numpy(behind.x @ weight)

        right = second(stream + out)

        def attended_otherwise(made: Changed, rows: Any) -> Any:
            return second(stream[rows] + torch.from_numpy(made(rows) @ weight)).numpy()

        def others() -> Iterator[tuple[str, Changed]]:
            for says, made in behind.others():
                yield says, partial(attended_otherwise, made)
            yield "no attention", given(second(stream).numpy())
            yield "no residual round attention", given(second(out).numpy())
            yield "no residual round the MLP", given((right - stream - out).numpy())
            yield "no MLP", given((stream + out).numpy())
            for says, change in (*of_norms(layer, beside), *(of_router(layer, routers) if side == "target" else ())):
                yield says, _fed_otherwise(half.under(change), stream + out)

        again = Product(right.numpy(), None, (), others)
        return [
            *fed(),
            again,
            replace(behind, back=partial(_led_back, second, stream, stream + out), inside="attention", led=LED),
        ]

    return made


def _fed_otherwise(second: Second, x: Tensor) -> Changed:
    return lambda rows: second(x[rows]).numpy()


def _led_back(second: Second, stream: Tensor, begun: Tensor, rows: Any, numbers: Any) -> Any:
    """What attention must have given, [r, H], for some rows of the layer to end as they do; NaN where it is not found.

    Args:
        rows: what leaves the layer, [r, H].
        numbers: of the rows, [r].
    """
    led: Any = (entering(second, torch.from_numpy(rows), begun[numbers]) - stream[numbers]).numpy()
    return led


def streams_of(layer: Any, side: str, stack: ExitStack) -> list[Tensor]:
    """What goes round a layer's attention, call by call: [rows, H] each."""
    return entered(layer, stack) if side == "target" else _before_mlp(layer, stack)


def _before_mlp(layer: Any, stack: ExitStack) -> list[Tensor]:
    """What goes round a drafter layer's attention, call by call: [rows, H] each."""
    seen: list[Tensor] = []

    def around(after: Callable[..., Tensor], x: Tensor, attn_out: Tensor) -> Tensor:
        seen.append(x.detach().flatten(0, -2))
        return after(x, attn_out)

    stack.enter_context(layer.after_attention.around(around))
    return seen
