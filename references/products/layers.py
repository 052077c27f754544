"""What a whole layer gives if something inside it were another: for a port that shows no more than what leaves a layer.

The layer is computed again from what entered it, with one change inside: another attention, a head or an expert left
out, another MLP. Experts are chosen anew behind a changed attention, as they are on a device that chooses for itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from parity.references.hypotheses.mutating import layers_of
from parity.references.products import attention, gated, norms
from parity.references.products.fixed_points import entering
from parity.references.products.product import Changed, Made, Product, entered, given

LED = 48
"""Rows that are led back at the most, evenly chosen."""

Second = Callable[[Tensor], Tensor]
"""The second half of a layer, from the stream behind attention [R, H]."""

Change = Callable[[Tensor], Tensor]
"""A change of a tensor, of the same shape."""


def whole_layer(loop: Any, side: str, number: int, layer: Any, stack: ExitStack) -> Made:
    """What leaves a layer, in three ways: its MLP's product, its rows under other attention, and attention's product.

    The last is met by what attention must have given for the layer to end where it did: see `Product.back`.
    """
    attended = attention.heads(loop, side, number, layer, stack)
    fed = (gated.experts if side == "target" else gated.mlp)(loop, side, number, layer, stack)
    streams = entered(layer, stack) if side == "target" else _before_mlp(layer, stack)
    beside = _other_norms(loop, side, number, layer)

    def made() -> list[Product]:
        stream, behind = torch.cat(streams).double(), attended()[0]
        weight = np.asarray(behind.weight, np.float64).T
        second = second_half(layer, side)
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
            for says, norm in norms.variants(*norms.weight_and_eps(layer.post_attention_layernorm), beside):
                yield f"the second norm: {says}", _fed_otherwise(second_half(layer, side, norm), stream + out)

        again = Product(right.numpy(), None, (), others)
        return [
            *fed(),
            again,
            replace(behind, back=partial(_led_back, second, stream, stream + out), inside="attention", led=LED),
        ]

    return made


def _fed_otherwise(second: Second, x: Tensor) -> Changed:
    return lambda rows: second(x[rows]).numpy()


def _other_norms(loop: Any, side: str, number: int, layer: Any) -> list[tuple[str, Tensor]]:
    """Weights that might stand in the second norm's place: the first one's, and the second ones' of other layers."""
    weights = [("the first norm", layer.input_layernorm.weight)]
    weights += [
        (f"layer {at}'s", other.post_attention_layernorm.weight)
        for at, other in layers_of(loop, side, "all")
        if at != number
    ]
    return [(name, weight.detach().double()) for name, weight in weights]


def _led_back(second: Second, stream: Tensor, begun: Tensor, rows: Any, numbers: Any) -> Any:
    """What attention must have given, [r, H], for some rows of the layer to end as they do; NaN where it is not found.

    Args:
        rows: what leaves the layer, [r, H].
        numbers: of the rows, [r].
    """
    led: Any = (entering(second, torch.from_numpy(rows), begun[numbers]) - stream[numbers]).numpy()
    return led


def _before_mlp(layer: Any, stack: ExitStack) -> list[Tensor]:
    """What goes round a drafter layer's attention, call by call: [rows, H] each."""
    seen: list[Tensor] = []

    def around(after: Callable[..., Tensor], x: Tensor, attn_out: Tensor) -> Tensor:
        seen.append(x.detach().flatten(0, -2))
        return after(x, attn_out)

    stack.enter_context(layer.after_attention.around(around))
    return seen


def second_half(
    layer: Any,
    side: str,
    norm: norms.Norm | None = None,
    inner: gated.Variant = lambda of: of,
    shares: Change = lambda share: share,
    bias: Change = lambda bias: bias,
) -> Second:
    """What a layer makes of the stream behind its attention.

    Args:
        norm: what stands in its second norm's place.
        inner: a change of its MLP's first half.
        shares: a change of what experts weigh, [R, E].
        bias: a change of their down biases, [E, H].
    """
    norm = norm or norms.of_module(layer.post_attention_layernorm)
    return _experts(layer, norm, inner, shares, bias) if side == "target" else _mlp(layer, norm, inner)


def gated_of(layer: Any, side: str) -> tuple[gated.Gated, float, float]:
    """A layer's MLP without rows, and its activation's slope and limit."""
    held = layer.mlp
    if side == "target":
        experts = held.experts
        none = held.router.weight.detach().double()[:0]
        return gated.gated_experts(experts, none), float(experts.alpha), float(experts.limit)
    gate, up = (one.weight.detach().double()[None] for one in (held.gate_proj, held.up_proj))
    return gated.Gated(gate[0, :0], gate, up, None, None, gated.swiglu), 1.0, math.inf


def _mlp(layer: Any, norm: norms.Norm, inner: gated.Variant) -> Second:
    fed, down = inner(gated_of(layer, "drafter")[0]), layer.mlp.down_proj.weight.detach().double()

    def half(x: Tensor) -> Tensor:
        out: Tensor = x + fed.of_expert(0, norm(x)) @ down.T
        return out

    return half


def _experts(
    layer: Any,
    norm: norms.Norm,
    inner: gated.Variant,
    weighed: Callable[[Tensor], Tensor],
    biased: Callable[[Tensor], Tensor],
) -> Second:
    router, held = layer.mlp.router, layer.mlp.experts
    weight, bias = router.weight.detach().double(), router.bias.detach().double()
    down, down_bias = held.down_proj.detach().double(), biased(held.down_proj_bias.detach().double())
    fed = inner(gated_of(layer, "target")[0])

    def half(x: Tensor) -> Tensor:
        normed = norm(x)
        best = F.linear(normed, weight, bias).topk(router.top_k, dim=-1)
        shares = weighed(normed.new_zeros(len(normed), len(weight)).scatter(1, best.indices, best.values.softmax(-1)))
        out: Tensor = x + shares @ down_bias
        for expert in best.indices.unique().tolist():
            rows = shares[:, expert].nonzero()[:, 0]
            given_out = fed.of_expert(expert, normed[rows]) * shares[rows, expert, None]
            out.index_add_(0, rows, given_out @ down[expert])
        return out

    return half
