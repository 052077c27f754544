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

from parity.references.gpt_oss import rms_norm
from parity.references.products import attention, gated
from parity.references.products.product import Made, Product, entered

STEPS, SETTLED, FINE = 12, 1e-9, 1e-7
"""Newton steps, what may be missing of a row in the end, and how far a difference reaches, relative to a row."""

LED = 48
"""Rows that are led back at the most, evenly chosen."""

Second = Callable[[Tensor], Tensor]
"""The second half of a layer, from the stream behind attention [R, H]."""


def whole_layer(loop: Any, side: str, number: int, layer: Any, stack: ExitStack) -> Made:
    """What leaves a layer, in three ways: its MLP's product, its rows under other attention, and attention's product.

    The last is met by what attention must have given for the layer to end where it did: see `Product.back`.
    """
    attended = attention.heads(loop, side, number, layer, stack)
    fed = (gated.experts if side == "target" else gated.mlp)(loop, side, number, layer, stack)
    streams = entered(layer, stack) if side == "target" else _before_mlp(layer, stack)

    def made() -> list[Product]:
        stream, behind = torch.cat(streams).double(), attended()[0]
        weight = np.asarray(behind.weight, np.float64).T
        second = (_experts if side == "target" else _mlp)(layer)
        out = torch.from_numpy(behind.x @ weight)

        def others() -> Iterator[tuple[str, Any]]:
            for says, x in behind.others():
                yield says, second(stream + torch.from_numpy(x @ weight)).numpy()
            yield "no attention", second(stream).numpy()
            yield "no residual round attention", second(out).numpy()
            yield "no residual round the MLP", (second(stream + out) - stream - out).numpy()
            yield "no MLP", (stream + out).numpy()

        again = Product(second(stream + out).numpy(), None, (), others)
        return [
            *fed(),
            again,
            replace(behind, back=partial(_led_back, second, stream, stream + out), inside="attention", led=LED),
        ]

    return made


def _led_back(second: Second, stream: Tensor, begun: Tensor, rows: Any, numbers: Any) -> Any:
    """What attention must have given, [r, H], for some rows of the layer to end as they do; NaN where it is not found.

    Newton's method from where the golden was, with differences for derivatives: H rows of the MLP for each row.

    Args:
        rows: what leaves the layer, [r, H].
        numbers: of the rows, [r].
    """
    found = torch.from_numpy(rows).new_full(rows.shape, math.nan)
    for place, number in enumerate(numbers):
        out, x = torch.from_numpy(rows[place]), begun[number].clone()
        for _ in range(STEPS):
            missing = out - second(x[None])[0]
            if missing.norm() <= SETTLED * out.norm():
                found[place] = x - stream[number]
                break
            step = FINE * x.norm()
            moved = second(x + step * torch.eye(len(x), dtype=x.dtype))
            x = x + torch.linalg.lstsq(((moved - second(x[None])) / step).T, missing[:, None]).solution[:, 0]
    return found.numpy()


def _before_mlp(layer: Any, stack: ExitStack) -> list[Tensor]:
    """What goes round a drafter layer's attention, call by call: [rows, H] each."""
    seen: list[Tensor] = []

    def around(after: Callable[..., Tensor], x: Tensor, attn_out: Tensor) -> Tensor:
        seen.append(x.detach().flatten(0, -2))
        return after(x, attn_out)

    stack.enter_context(layer.after_attention.around(around))
    return seen


def _mlp(layer: Any) -> Second:
    norm, held = layer.post_attention_layernorm, layer.mlp
    gate, up, down = (side.weight.detach().double() for side in (held.gate_proj, held.up_proj, held.down_proj))

    def half(x: Tensor) -> Tensor:
        normed = rms_norm(x, norm.weight.detach().double(), norm.eps)
        out: Tensor = x + gated.swiglu(normed @ gate.T, normed @ up.T) @ down.T
        return out

    return half


def _experts(layer: Any) -> Second:
    norm, router, held = layer.post_attention_layernorm, layer.mlp.router, layer.mlp.experts
    weight, bias = router.weight.detach().double(), router.bias.detach().double()
    down, down_bias = held.down_proj.detach().double(), held.down_proj_bias.detach().double()

    def half(x: Tensor) -> Tensor:
        normed = rms_norm(x, norm.weight.detach().double(), norm.variance_epsilon)
        best = F.linear(normed, weight, bias).topk(router.top_k, dim=-1)
        shares = normed.new_zeros(len(normed), len(weight)).scatter(1, best.indices, best.values.softmax(-1))
        inner = gated.gated_experts(held, normed).inner() * shares[..., None]
        out: Tensor = x + torch.einsum("rei,eih->rh", inner, down) + shares @ down_bias
        return out

    return half
