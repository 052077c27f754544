"""What a whole layer gives if something inside it were another: for a port that shows no more than what leaves a layer.

The layer is computed again from what entered it, with one change inside: another attention, a head or an expert left
out, another MLP. Experts are chosen anew behind a changed attention, as they are on a device that chooses for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from parity.references.gpt_oss import rms_norm
from parity.references.products import attention, gated
from parity.references.products.product import Made, Product, entered

Second = Callable[[Tensor], Tensor]
"""The second half of a layer, from the stream behind attention [R, H]."""


def whole_layer(loop: Any, side: str, number: int, layer: Any, stack: ExitStack) -> Made:
    """What leaves a layer: no product, and what it would be under each change."""
    held, mixed = attention.passes(loop, side, number, stack), entered(layer.self_attn.o_proj, stack)
    streams = entered(layer, stack) if side == "target" else _before_mlp(layer, stack)

    def made() -> Product:
        stream, projection = torch.cat(streams).double(), layer.self_attn.o_proj
        weight = projection.weight.detach().double()
        bias = None if projection.bias is None else projection.bias.detach().double()
        before = torch.cat(mixed).double()
        second, changes = (_experts if side == "target" else _mlp)(layer)

        def behind(heads: Tensor) -> Tensor:
            return stream + F.linear(heads, weight, bias)

        def others() -> Iterator[tuple[str, Any]]:
            for says, variant in attention.variants(len(held[0].k), held[0].sinks is not None):
                heads = torch.cat([variant(one).mixed().flatten(1) for one in held])
                yield says, second(behind(heads)).numpy()
            size = held[0].q.shape[2]
            for head in range(len(held[0].q)):
                heads = before.clone()
                heads[:, head * size : (head + 1) * size] = 0
                yield f"head {head} is missing", second(behind(heads)).numpy()
            yield "no bias of the output projection", second(behind(before) - (0 if bias is None else bias)).numpy()
            yield "no attention", second(stream).numpy()
            yield "no residual round attention", second(behind(before) - stream).numpy()
            yield "no residual round the MLP", (second(behind(before)) - behind(before)).numpy()
            for says, changed in changes():
                yield says, changed(behind(before)).numpy()

        return Product(second(behind(before)).numpy(), None, (), others)

    return made


def _before_mlp(layer: Any, stack: ExitStack) -> list[Tensor]:
    """What goes round a drafter layer's attention, call by call: [rows, H] each."""
    seen: list[Tensor] = []

    def around(after: Callable[..., Tensor], x: Tensor, attn_out: Tensor) -> Tensor:
        seen.append(x.detach().flatten(0, -2))
        return after(x, attn_out)

    stack.enter_context(layer.after_attention.around(around))
    return seen


def _mlp(layer: Any) -> tuple[Second, Callable[[], Iterator[tuple[str, Second]]]]:
    norm, held = layer.post_attention_layernorm, layer.mlp
    gate, up = (side.weight.detach().double()[None] for side in (held.gate_proj, held.up_proj))
    down = held.down_proj.weight.detach().double()

    def half(x: Tensor, change: gated.Variant = lambda one: one) -> Tensor:
        one = gated.Gated(rms_norm(x, norm.weight.detach().double(), norm.eps), gate, up, None, None, gated.swiglu)
        out: Tensor = x + change(one).inner()[:, 0] @ down.T
        return out

    def changes() -> Iterator[tuple[str, Second]]:
        empty = gated.Gated(gate.new_zeros(1, gate.shape[2]), gate, up, None, None, gated.swiglu)
        for says, variant in gated.variants(empty):
            yield says, partial(half, change=variant)
        yield "no MLP", lambda x: x

    return half, changes


def _experts(layer: Any) -> tuple[Second, Callable[[], Iterator[tuple[str, Second]]]]:
    norm, router, held = layer.post_attention_layernorm, layer.mlp.router, layer.mlp.experts
    weight, bias = router.weight.detach().double(), router.bias.detach().double()
    down, down_bias = held.down_proj.detach().double(), held.down_proj_bias.detach().double()
    whole = torch.arange(held.num_experts) >= 0

    def half(
        x: Tensor, change: gated.Variant = lambda one: one, kept: Tensor = whole, biases: Tensor = whole
    ) -> Tensor:
        normed = rms_norm(x, norm.weight.detach().double(), norm.variance_epsilon)
        scores = F.linear(normed, weight, bias)
        best = scores.topk(router.top_k, dim=-1)
        shares = torch.zeros_like(scores).scatter(1, best.indices, best.values.softmax(-1)) * kept
        inner = change(gated.gated_experts(held, normed)).inner() * shares[..., None]
        out: Tensor = x + torch.einsum("rei,eih->rh", inner, down) + (shares * biases) @ down_bias
        return out

    def changes() -> Iterator[tuple[str, Second]]:
        empty = gated.gated_experts(held, down_bias.new_zeros(1, weight.shape[1]))
        for says, variant in gated.variants(empty, float(held.alpha), float(held.limit)):
            yield says, partial(half, change=variant)
        for expert in range(held.num_experts):
            others = torch.arange(held.num_experts) != expert
            yield f"expert {expert} is missing", partial(half, kept=others)
            yield f"the down bias of expert {expert} is missing", partial(half, biases=others)
        yield "no experts", lambda x: x

    return half, changes
