"""The product behind a stage: what enters it, by whose weight it is multiplied, and what might have entered instead.

A stage that ends in a product, y = x W^T, is a sum over parts: heads, experts, biases, input columns. A device's error
at such a stage lies in what some of them contribute. A bias is one more column of W, met by ones (by an expert's share
of the row).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parity.references import attention_variants, expert_variants
from parity.references.attention_variants import Pass
from parity.references.expert_variants import Gated, clamped_swiglu, swiglu
from parity.references.hypotheses.masks import Attend, attending, seen_keys
from parity.references.hypotheses.mutating import entering, head_of, layers_of
from parity.references.hypotheses.routing import running

Parts = Sequence[tuple[str, int, int]]
Made = Callable[[], "Product"]


@dataclass(frozen=True)
class Product:
    """What a stage's rows are a product of.

    Attributes:
        x: what enters, float64 [R, D], R rows in the stage's order.
        weight: float32 [C, D]: a head's is large.
        parts: names of runs of columns of D: (name, first, behind the last).
        others: what would enter under small changes, as (what is changed, x [R, D]), made as they are asked for.
    """

    x: Any
    weight: Any
    parts: Parts
    others: Callable[[], Iterator[tuple[str, Any]]] = lambda: iter(())


@contextmanager
def watched(loop: Any, stage: str) -> Iterator[Made]:
    """While it is open, a run of the loop is watched for a stage's product; what is given makes it once the run ended.

    Raises:
        LookupError: the stage is no product that is watched.
    """
    side, _, rest = stage.partition(".")
    part = rest.rsplit(".", 1)[-1]
    with ExitStack() as stack:
        if rest.startswith("layers."):
            number = int(rest.split(".")[1])
            layer = layers_of(loop, side, number)[0][1]
            by_part = {"attn_out": _attention, "ffn_out": _experts if side == "target" else _mlp}
            if part in by_part:
                yield by_part[part](loop, side, number, layer, stack)
                return
            module = {"v": lambda: layer.self_attn.v_proj, "router_logits": lambda: layer.mlp.router}[part]()
        else:
            module = {
                "target.logits": lambda: head_of(loop, "target"),
                "verify.logits": lambda: head_of(loop, "target"),
                "drafter.logits": lambda: head_of(loop, "drafter"),
                "drafter.fc_out": lambda: loop.drafter.fc,
            }[stage]()
        seen = _entered(module, stack)
        yield lambda: _linear(module, torch.cat(seen))


def _entered(module: Any, stack: ExitStack) -> list[Tensor]:
    """What enters a module from now on, [rows of a call, D] each."""
    seen: list[Tensor] = []
    stack.enter_context(entering(module, lambda x: seen.append(x.detach().flatten(0, -2))))
    return seen


def _linear(
    module: Any, x: Tensor, parts: Parts = (), others: Callable[[], Iterator[tuple[str, Tensor]]] = lambda: iter(())
) -> Product:
    weight, width, named = module.weight.detach(), x.shape[1], list(parts)

    def whole(x: Tensor) -> Any:
        ones = x.new_ones(len(x), 1 if module.bias is not None else 0)
        return torch.cat((x, ones), dim=1).double().numpy()

    if module.bias is not None:
        weight = torch.cat((weight, module.bias.detach()[:, None]), dim=1)
        named.append(("the bias", width, width + 1))
    return Product(whole(x), weight.numpy(), tuple(named), lambda: ((says, whole(x)) for says, x in others()))


def _attention(loop: Any, side: str, number: int, layer: Any, stack: ExitStack) -> Made:
    """Heads by the output projection."""
    held: list[Pass] = []
    sinks = layer.self_attn.sinks.detach().double() if side == "target" else None

    def change(attend: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        first, second, third = (x[0].detach().double() for x in (q, k, v))
        held.append(Pass(first, second, third, seen_keys(mask)[0, 0][..., : k.shape[2]].expand(q.shape[2], -1), sinks))
        return attend(q, k, v, mask)

    stack.enter_context(attending(loop, number, change, side))
    seen = _entered(layer.self_attn.o_proj, stack)

    def made() -> Product:
        size, heads, groups = held[0].q.shape[2], len(held[0].q), len(held[0].k)
        parts = [(f"head {head}", head * size, (head + 1) * size) for head in range(heads)]

        def others() -> Iterator[tuple[str, Tensor]]:
            for says, variant in attention_variants.variants(groups, sinks is not None):
                yield says, torch.cat([variant(one).mixed().flatten(1) for one in held])

        return _linear(layer.self_attn.o_proj, torch.cat(seen), parts, others)

    return made


def _mlp(loop: Any, side: str, number: int, layer: Any, stack: ExitStack) -> Made:
    """A gated MLP's inner activation by its down projection."""
    mlp = layer.mlp
    rows, seen = _entered(mlp, stack), _entered(mlp.down_proj, stack)

    def made() -> Product:
        gate, up = (side.weight.detach().double()[None] for side in (mlp.gate_proj, mlp.up_proj))
        gated = Gated(torch.cat(rows).double(), gate, up, None, None, swiglu)

        def others() -> Iterator[tuple[str, Tensor]]:
            for says, variant in expert_variants.variants(gated):
                yield says, variant(gated).inner()[:, 0]

        return _linear(mlp.down_proj, torch.cat(seen), (), others)

    return made


def _experts(loop: Any, side: str, number: int, layer: Any, stack: ExitStack) -> Made:
    """Each expert's inner activation times its share of the row, and the share alone, which meets its bias."""
    experts, rows, shares = layer.mlp.experts, [], []

    def run(module: Any, inner: Callable[..., Tensor], hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        flat = hidden.detach().reshape(-1, hidden.shape[-1]).double()
        rows.append(flat)
        shares.append(flat.new_zeros(len(flat), module.num_experts).scatter(1, ids, weights.detach().double()))
        return inner(hidden, ids, weights)

    stack.enter_context(running(loop, number, run))

    def made() -> Product:
        count, down = experts.num_experts, experts.down_proj.detach().double()
        width, share = down.shape[1], torch.cat(shares)
        weight = torch.cat((down.flatten(0, 1).T, experts.down_proj_bias.detach().double().T), dim=1)
        parts = [(f"the down weight of expert {one}", one * width, (one + 1) * width) for one in range(count)]
        parts += [
            (f"the down bias of expert {one}", count * width + one, count * width + one + 1) for one in range(count)
        ]
        gated = _gated(experts, torch.cat(rows))

        def whole(inner: Tensor) -> Any:
            return torch.cat(((inner * share[..., None]).flatten(1), share), dim=1).numpy()

        def others() -> Iterator[tuple[str, Any]]:
            for says, variant in expert_variants.variants(gated, float(experts.alpha), float(experts.limit)):
                yield says, whole(variant(gated).inner())

        return Product(whole(gated.inner()), weight.float().numpy(), tuple(parts), others)

    return made


def _gated(experts: Any, x: Tensor) -> Gated:
    """gpt-oss's experts: gate and up take turns on the last axis of [E, H, 2 I]."""
    both = experts.gate_up_proj.detach().double().transpose(1, 2)
    bias = experts.gate_up_proj_bias.detach().double()
    act = clamped_swiglu(float(experts.alpha), float(experts.limit))
    return Gated(x, both[:, 0::2], both[:, 1::2], bias[:, 0::2], bias[:, 1::2], act)
