"""Other norms and other residual sums, on either side."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from parity.references.mutations import (
    NotApplicable,
    changed,
    drafter_layers,
    layers_of,
    replaced,
    reweighted,
    together,
    wrapped,
)


def _norms(loop: Any, side: str, part: str, value: Any) -> list[torch.nn.Module]:
    """The norms of this name, in these layers; `norm` is the final one."""
    if part == "norm":
        return [loop.target.model.model.norm if side == "target" else loop.drafter.norm]
    if part == "hidden_norm":
        return [loop.drafter.midlayer.hidden_norm]
    return [getattr(layer, part) for _, layer in layers_of(loop, side, value)]


def parts_of(side: str) -> tuple[str, ...]:
    """The norms' names, the final one last."""
    fusion = ("hidden_norm",) if side == "drafter" else ()
    return ("input_layernorm", *fusion, "post_attention_layernorm", "norm")


def norm(loop: Any, value: Any, side: str, part: str, how: str) -> AbstractContextManager:
    """A norm left out, or with other weights or another order."""
    norms = _norms(loop, side, part, value)
    weights = {"unweighted": torch.ones_like, "plus one": lambda w: w + 1}
    if how in weights:
        return together(changed(one.weight, weights[how]) for one in norms)
    around = {
        "missing": lambda inner, x: x,
        "centred": lambda inner, x: inner(x - x.mean(-1, keepdim=True)),
        "twice": lambda inner, x: inner(inner(x)),
        "sum of squares": lambda inner, x: inner(x) * x.shape[-1] ** -0.5,
    }
    if how == "cast first":
        return together(wrapped(one, "forward", _cast_first(one)) for one in norms)
    return together(wrapped(one, "forward", around[how]) for one in norms)


def _cast_first(module: torch.nn.Module) -> Callable:
    """Rounded to bfloat16 before the weight multiplies."""
    eps = getattr(module, "variance_epsilon", None) or module.eps

    def around(inner, x):
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return (normed.bfloat16().float() * module.weight.float()).to(x.dtype)

    return around


def epsilon(loop: Any, value: float, side: str) -> AbstractContextManager:
    """Every norm of this side with another eps."""
    name = "variance_epsilon" if side == "target" else "eps"
    body = loop.target.model if side == "target" else loop.drafter
    norms = [module for module in body.modules() if hasattr(module, name)]
    if getattr(norms[0], name) == value:
        raise NotApplicable(f"eps is {value}")
    return together(replaced(module, name, value) for module in norms)


def swapped(loop: Any, value: None) -> AbstractContextManager:
    """input_layernorm on the hidden and hidden_norm on the embedding."""
    one, other = loop.drafter.midlayer.input_layernorm.weight, loop.drafter.midlayer.hidden_norm.weight
    return together((reweighted(one, other.data), reweighted(other, one.data)))


def residual_before(loop: Any, value: str) -> AbstractContextManager:
    """Another vector goes round the fusion layer's attention."""
    layer = loop.drafter.midlayer
    around = {
        "the normed hidden": lambda inner, embed, hidden, normed: normed,
        "the fused hidden": lambda inner, embed, hidden, normed: hidden,
        "the embedding": lambda inner, embed, hidden, normed: embed,
        "hidden plus embedding": lambda inner, embed, hidden, normed: inner(embed, hidden, normed) + embed,
        "nothing": lambda inner, embed, hidden, normed: torch.zeros_like(hidden),
    }[value]
    if value == ("the normed hidden" if layer.norm_before_residual else "the fused hidden"):
        raise NotApplicable("that is what this drafter does")
    return wrapped(layer, "residual", around)


def fusion_order(loop: Any, value: None) -> AbstractContextManager:
    """[hidden, embedding] instead of [embedding, hidden] into the fusion layer's attention."""
    attention = loop.drafter.midlayer.self_attn
    half = loop.drafter.config.hidden_size
    return together(
        changed(part.weight, lambda w: torch.cat((w[:, half:], w[:, :half]), 1))
        for part in (attention.q_proj, attention.k_proj, attention.v_proj)
    )


def fusion_half(loop: Any, value: str) -> AbstractContextManager:
    """The fusion layer's attention sees the embedding alone, or the hidden alone."""
    attention, half = loop.drafter.midlayer.self_attn, loop.drafter.config.hidden_size
    kept = (torch.arange(2 * half) < half) == (value == "embedding")
    return together(
        changed(part.weight, lambda w: w * kept) for part in (attention.q_proj, attention.k_proj, attention.v_proj)
    )


def residual(loop: Any, value: Any, side: str, where: str, how: str) -> AbstractContextManager:
    """A residual sum gone wrong in these layers.

    `where`: attention or mlp. `how`: missing (the branch is lost), dropped (the branch alone), normed (the branch's normed input plus the
    branch), twice, or, behind the mlp, input (the layer's input, without the attention).
    """
    one = _target_layer if side == "target" else _drafter_layer
    return together(one(layer, where, how) for _, layer in layers_of(loop, side, value))


def _sum(how: str, x, normed, branch, before):
    return {
        "missing": x,
        "dropped": branch,
        "normed": normed + branch,
        "twice": 2 * x + branch,
        "input": before + branch,
    }[how]


def _target_layer(layer: torch.nn.Module, where: str, how: str) -> AbstractContextManager:
    def forward(inner, hidden_states, **kwargs):
        before, normed = hidden_states, layer.input_layernorm(hidden_states)
        branch = layer.self_attn(hidden_states=normed, **kwargs)[0]
        x = _sum(how, before, normed, branch, before) if where == "attention" else before + branch
        normed = layer.post_attention_layernorm(x)
        branch = layer.mlp(normed)[0]
        return _sum(how, x, normed, branch, before) if where == "mlp" else x + branch

    return wrapped(layer, "forward", forward)


@contextmanager
def _drafter_layer(layer: torch.nn.Module, where: str, how: str):
    seen: dict[str, torch.Tensor] = {}

    def after_attention(inner, x, attn_out):
        seen["before"] = x
        if where != "attention":
            return inner(x, attn_out)
        if how == "missing":
            return x
        normed = layer.input_layernorm(x) if not hasattr(layer, "hidden_norm") else layer.hidden_norm(x)
        return _sum(how, x, normed, attn_out, x)

    def after_mlp(inner, x, ffn_out):
        if where != "mlp":
            return inner(x, ffn_out)
        return _sum(how, x, layer.post_attention_layernorm(x), ffn_out, seen["before"])

    with wrapped(layer, "after_attention", after_attention), wrapped(layer, "after_mlp", after_mlp):
        yield


@contextmanager
def last_branch(loop: Any, value: None, side: str):
    """The final norm sees the last layer's MLP output without the residual stream."""
    seen: list[torch.Tensor] = []
    (_, last), *_ = reversed(layers_of(loop, side))
    if side == "target":
        hook = last.mlp.register_forward_hook(lambda module, args, output: seen.append(output[0]))
        try:
            with wrapped(loop.target.model.model.norm, "forward", lambda inner, x: inner(seen.pop())):
                yield
        finally:
            hook.remove()
        return

    def after_mlp(inner, x, ffn_out):
        seen[:] = [ffn_out[0]]
        return inner(x, ffn_out)

    predicting = lambda inner, rows, committed: inner(seen[0], committed)  # noqa: E731
    with wrapped(last, "after_mlp", after_mlp), wrapped(loop, "_predicting", predicting):
        yield


@contextmanager
def head_unnormed(loop: Any, value: None, side: str):
    """The head reads the residual stream as it was before the final norm."""
    if side == "target":
        layers = loop.target.config.num_hidden_layers
        around = lambda inner, x: inner(loop.target.streams[layers][None])  # noqa: E731
        with wrapped(loop.target.model.lm_head, "forward", around):
            yield
        return
    seen: list[torch.Tensor] = []

    def predicting(inner, rows, committed):
        seen[:] = [inner(rows, committed)]
        return seen[0]

    head = wrapped(loop.drafter.lm_head, "forward", lambda inner, x: inner(seen[0]))
    with wrapped(loop, "_predicting", predicting), head:
        yield


def drafter_layer_skipped(loop: Any, value: int | str) -> AbstractContextManager:
    """A plain layer of the drafter, or the last one, does not run: its cache rows are zero, the stream goes by it."""
    layers = drafter_layers(loop)
    number = len(layers) - 1 if value == "the last one" else value
    if number == 0:
        raise NotApplicable("the fusion layer makes the stream")
    config = loop.drafter.config

    def forward(inner, x, tables, mask, cache, tap):
        rows = x.new_zeros(x.shape[0], config.num_kv_heads, x.shape[1], config.head_dim)
        cache.extend(number, rows, rows)
        return x

    return together(wrapped(layer, "forward", forward) for place, layer in layers if place == number)


def head_normed_twice(loop: Any, value: None, side: str) -> AbstractContextManager:
    """The final norm once more before the head."""
    norm = _norms(loop, side, "norm", None)[0]
    head = loop.target.model.lm_head if side == "target" else loop.drafter.lm_head
    return wrapped(head, "forward", lambda inner, x: inner(norm.forward(x)))
