"""The product behind a stage: what enters it, by whose weight it is multiplied, and what might have entered instead.

A stage that ends in a product, y = x W^T, is a sum over parts: heads, experts, biases, input columns. A device's error
at such a stage lies in what some of them contribute. A bias is one more column of W, met by ones (by an expert's share
of the row).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

from parity.references.hypotheses.mutating import head_of, layers_of
from parity.references.products.attention import heads
from parity.references.products.caches import of_cache
from parity.references.products.entering import LayerBack, entering_layer
from parity.references.products.experts import mixture
from parity.references.products.gated_mlp import mlp
from parity.references.products.layers import streams_of, whole_layer
from parity.references.products.norms import behind_attention, behind_layers, behind_norm, of_norm
from parity.references.products.product import Changed, Made, Parts, Product, entered, given, linear, projections
from parity.references.products.rotated import before_rotation
from parity.references.products.segments import segment

__all__ = ["LayerBack", "Product", "entering_layer", "watched"]


def _norms(loop: Any, side: str, number: int, name: str) -> list[tuple[str, Any]]:
    """The layer's other norm, and both of the layers before and behind."""
    held, names = dict(layers_of(loop, side, "all")), {"input_layernorm": "input", "post_attention_layernorm": "MLP"}
    near = {"the layer": number, "the layer before": number - 1, "the layer behind": number + 1}
    return [
        (f"the {short} norm of {where}", getattr(held[at], norm))
        for where, at in near.items()
        for norm, short in names.items()
        if at in held and (at, norm) != (number, name)
    ]


def _final_norms(loop: Any, side: str) -> tuple[Any, list[tuple[str, Any]]]:
    """The norm before a side's head, and the other model's where it has one."""
    norms = {"target": loop.target.model.model.norm, "drafter": getattr(loop.drafter, "norm", None)}
    others = [(f"the {name}'s final norm", norm) for name, norm in norms.items() if name != side and norm is not None]
    return norms[side], others


def _tables(loop: Any, side: str) -> list[tuple[str, Any]]:
    """Tables that a head may be tied to, or be taken for."""
    embeddings = {
        "target": loop.target.model.model.embed_tokens,
        "drafter": getattr(loop.drafter, "embed_tokens", None),
    }
    found = [(f"the {model}'s embedding", table) for model, table in embeddings.items() if table is not None]
    other = "drafter" if side == "target" else "target"
    with suppress(AttributeError):
        found.append((f"the {other}'s head", head_of(loop, other)))
    return found


def _taps(loop: Any, stage: str) -> Parts:
    """The taps that enter the fusion, by their columns; nothing of another stage."""
    if stage != "drafter.fc_out":
        return ()
    width, size = loop.drafter.fc.weight.shape[1], loop.target.model.config.hidden_size
    return [(f"tap {first // size}", first, first + size) for first in range(0, width, size)]


def _rows_of_table(table: Any, stack: ExitStack) -> Made:
    """The rows that ids choose of a table, and those of the ids of rows beside them."""
    seen = entered(table, stack)

    def made() -> list[Product]:
        ids, held = torch.cat([one.flatten() for one in seen]), table.weight.detach().float()

        def others() -> Iterator[tuple[str, Changed]]:
            for step in (1, -1):
                where = "behind" if step > 0 else "before"
                yield f"the embedding of the row {where}'s id", given(held[ids.roll(-step)].double().numpy())

        return [Product(held[ids].double().numpy(), None, (), others, table=(ids.numpy(), held.numpy()))]

    return made


def _of_cache(loop: Any, name: str, stack: ExitStack) -> Made:
    """Keys or values of a layer's cache, `drafter.0.k`; a cache's length is no product."""
    side, number, part = f"{name}.".split(".")[:3]
    if part not in ("k", "v"):
        raise LookupError(name)
    return of_cache(loop, side, int(number), part, stack)


def _before_the_last(made: list[Product], more: list[Product]) -> list[Product]:
    """Attention's product comes last: to lead rows back to it and to read its pairs costs most."""
    return [*made[:-1], *more, *made[-1:]]


@contextmanager
def watched(loop: Any, stage: str, hidden: Sequence[str] = ()) -> Iterator[Made]:
    """While it is open, a run of the loop is watched for a stage's product; what is given makes it once the run ended.

    Args:
        hidden: what leaves the layers in front of a stage's that are not shown, the nearest first.

    Raises:
        LookupError: the stage is no product that is watched.
    """
    side, _, rest = stage.partition(".")
    part = rest.rsplit(".", 1)[-1]
    beside: list[tuple[str, Any]] = []
    with ExitStack() as stack:
        if side == "kv":
            yield _of_cache(loop, rest, stack)
            return
        if rest.startswith("layers."):
            number = int(rest.split(".")[1])
            layer = layers_of(loop, side, number)[0][1]
            by_part = {
                "attn_out": heads,
                "ffn_out": mixture if side == "target" else mlp,
                "out": whole_layer,
            }
            if part in by_part:
                own: Made = by_part[part](loop, side, number, layer, stack)
                alike: Made = list
                with suppress(LookupError):
                    alike = segment(loop, [*reversed(hidden), stage], stack) if hidden else alike
                yield lambda: _before_the_last(own(), alike())
                return
            if part == "attn_in":
                yield of_norm(layer.input_layernorm, _norms(loop, side, number, "input_layernorm"), stack)
                return
            if part == "router_logits":
                beside = _norms(loop, side, number, "post_attention_layernorm")
                routers = [
                    (f"layer {at}", other.mlp.router) for at, other in layers_of(loop, side, "all") if at != number
                ]
                yield behind_norm(layer.mlp.router, behind_attention(layer, beside, stack), stack, beside=routers)
                return
            names = {"q": ("q_proj",), "k": ("k_proj", "v_proj"), "v": ("v_proj", "k_proj")}[part]
            module, beside = getattr(layer.self_attn, names[0]), projections(loop, side, number, *names)
            if part != "v":
                yield before_rotation(loop, number, module, beside, stack)
                return
        elif stage == "target.embed":
            yield _rows_of_table(loop.target.model.model.embed_tokens, stack)
            return
        elif part == "pre_head_hidden":
            *_, (_, last) = layers_of(loop, side, "all")
            halfway = entered(last.post_attention_layernorm, stack)
            yield behind_layers(*_final_norms(loop, side), streams_of(last, side, stack), halfway, stack)
            return
        elif stage == "drafter.fc_out":
            module = loop.drafter.fc
        else:
            calls = {"target.logits": slice(1), "verify.logits": slice(1, None), "drafter.logits": slice(None)}[stage]
            model = "drafter" if side == "drafter" else "target"
            rows = of_norm(*_final_norms(loop, model), stack, calls)
            yield behind_norm(head_of(loop, model), rows, stack, calls, _tables(loop, model))
            return
        seen = entered(module, stack)
        yield lambda: linear(module, torch.cat(seen), _taps(loop, stage), beside=beside)
