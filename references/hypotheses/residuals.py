"""Other residual sums, on either side, and what MLPs and heads are fed from the residual stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from parity.references.hypotheses.catalogue import FUSED, MODELS, Family, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import (
    Layer,
    Layers,
    NotApplicable,
    changed,
    drafter_layers,
    entering,
    exchanged,
    head_of,
    layers_of,
    leaving,
    together,
)
from parity.references.hypotheses.norms import BEHIND, FINAL, norms_of, shows
from parity.references.points import foreign

RESIDUAL_FIX = "fused add and norm: the residual stream is x + attention + MLP, un-normed"
LOGITS = {"target": ("target.logits", "verify.logits"), "drafter": ("drafter.logits",)}
LATER = {"target": 1, "drafter": 2}
"""The cost of what shows in a head: the drafter's runs in verify rounds alone."""

residuals = Family(by_side=True)

Sum = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
SUMS: dict[str, Sum] = {
    "missing": lambda x, normed, branch, before: x,
    "dropped": lambda x, normed, branch, before: branch,
    "normed": lambda x, normed, branch, before: normed + branch,
    "twice": lambda x, normed, branch, before: 2 * x + branch,
    "input": lambda x, normed, branch, before: before + branch,
}
"""Of the stream, the branch's normed input, the branch, and the layer's input."""


def residual(loop: Loop, value: Layers, side: str, where: str, how: str) -> Mutation:
    """A residual sum gone wrong in these layers, behind the attention or the mlp."""
    within = _target_layer if side == "target" else _drafter_layer
    return together(within(layer, where, SUMS[how]) for _, layer in layers_of(loop, side, value))


def _target_layer(layer: Layer, where: str, added: Sum) -> Mutation:
    def forward(inner: Callable[..., Tensor], hidden_states: Tensor, **kwargs: Any) -> Tensor:
        before, normed = hidden_states, layer.input_layernorm(hidden_states)
        branch = layer.self_attn(hidden_states=normed, **kwargs)[0]
        x = added(before, normed, branch, before) if where == "attention" else before + branch
        normed = layer.post_attention_layernorm(x)
        branch = layer.mlp(normed)[0]
        return added(x, normed, branch, before) if where == "mlp" else x + branch

    return foreign(layer, "forward").around(forward)


@contextmanager
def _drafter_layer(layer: Layer, where: str, added: Sum) -> Iterator[None]:
    seen: dict[str, Tensor] = {}
    first = getattr(layer, "hidden_norm", None) or layer.input_layernorm

    def after_attention(inner: Callable[..., Tensor], x: Tensor, attn_out: Tensor) -> Tensor:
        seen["before"] = x
        return added(x, first(x), attn_out, x) if where == "attention" else inner(x, attn_out)

    def after_mlp(inner: Callable[..., Tensor], x: Tensor, ffn_out: Tensor) -> Tensor:
        normed = layer.post_attention_layernorm
        return added(x, normed(x), ffn_out, seen["before"]) if where == "mlp" else inner(x, ffn_out)

    with layer.after_attention.around(after_attention), layer.after_mlp.around(after_mlp):
        yield


for where, how in (
    *(("attention", how) for how in ("missing", "dropped", "normed", "twice")),
    *(("mlp", how) for how in ("dropped", "normed", "twice", "input")),
):
    residuals.both(
        f"residual-{where}-{how}",
        f"the residual sum behind the {where}: {how}",
        stages=shows(BEHIND) if where == "attention" else ("{side}.layers.*.out",),
        layered=True,
        fix=RESIDUAL_FIX,
        seen={"target": (), "drafter": ("vLLM #26164",)},
    )(partial(residual, where=where, how=how))


@residuals.both(
    "{side}-final-norm-no-residual",
    "the final norm sees the last MLP's output without the residual stream",
    stages=shows(FINAL),
    fix="the final fused norm takes (hidden, residual)",
    seen={"target": (), "drafter": ("vLLM #14464",)},
    cost=LATER,
)
@contextmanager
def _(loop: Loop, value: None, side: str) -> Iterator[None]:
    seen: list[Tensor] = []
    _, last = layers_of(loop, side)[-1]
    if side == "target":
        behind = leaving(last.mlp, lambda output: seen.append(output[0]))
        final = foreign(loop.target.model.model.norm, "forward")
        with behind, final.around(lambda inner, x: inner(seen.pop())):
            yield
        return

    def after_mlp(inner: Callable[..., Tensor], x: Tensor, ffn_out: Tensor) -> Tensor:
        seen[:] = [ffn_out[0]]
        return inner(x, ffn_out)

    predicting = loop.predicting.around(lambda inner, rows, known: inner(seen[0], known))
    with last.after_mlp.around(after_mlp), predicting:
        yield


@residuals.both(
    "{side}-no-final-norm",
    "the head reads the stream before the final norm",
    stages=LOGITS,
    fix="what the head is applied to",
    seen={"target": (), "drafter": ("SpecForge #879",)},
    cost=LATER,
)
@contextmanager
def _(loop: Loop, value: None, side: str) -> Iterator[None]:
    seen: list[Tensor] = []
    head = foreign(head_of(loop, side), "forward")
    if side == "target":
        last = loop.target.config.num_hidden_layers
        with head.around(lambda inner, x: inner(loop.target.streams[last][None])):
            yield
        return

    def predicting(inner: Callable[..., Tensor], rows: Tensor, known: int) -> Tensor:
        seen[:] = [inner(rows, known)]
        return seen[0]

    with loop.predicting.around(predicting), head.around(lambda inner, x: inner(seen[0])):
        yield


@residuals.both(
    "{side}-final-norm-before-head-twice",
    "the final norm once more before the head",
    stages=LOGITS,
    fix="what the head is applied to",
    seen={"target": (), "drafter": ("SpecForge #879",)},
    cost=LATER,
)
def _(loop: Loop, value: None, side: str) -> Mutation:
    (norm,) = norms_of(loop, side, FINAL)
    return foreign(head_of(loop, side), "forward").around(lambda inner, x: inner(norm.forward(x)))


fusion = Family(
    stages=("drafter.layers.0.attn_out",),
    fix="the fusion layer: cat[input_layernorm(embedding), hidden_norm(hidden)]",
    drafters=FUSED,
)

ROUND: dict[str, Callable[..., Tensor]] = {
    "the normed hidden": lambda inner, embed, hidden, normed: normed,
    "the fused hidden": lambda inner, embed, hidden, normed: hidden,
    "the embedding": lambda inner, embed, hidden, normed: embed,
    "hidden plus embedding": lambda inner, embed, hidden, normed: inner(embed, hidden, normed) + embed,
    "nothing": lambda inner, embed, hidden, normed: torch.zeros_like(hidden),
}


@fusion(
    "drafter-residual-normed",
    "drafter: {value} goes round the fusion layer's attention",
    stages=("drafter.layers.0.ffn_out", "drafter.layers.0.out"),
    values=ROUND,
    fix="the residual of the fusion layer: norm_before_residual of the drafter's config says which hidden",
    seen=("vLLM speculators defaults",),
)
def _(loop: Loop, value: str) -> Mutation:
    layer = loop.drafter.midlayer
    if value == ("the normed hidden" if layer.norm_before_residual else "the fused hidden"):
        raise NotApplicable("that is what this drafter does")
    return layer.residual.around(ROUND[value])


def _columns(loop: Loop, change: Callable[[Tensor, int], Tensor]) -> Mutation:
    """`change(weight, H)` of what makes q, k and v of the embedding [.., :H] and the hidden [.., H:]."""
    attention, half = loop.drafter.midlayer.self_attn, loop.drafter.config.hidden_size
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return together(changed(projection.weight, lambda w: change(w, half)) for projection in projections)


@fusion("drafter-fusion-order", "drafter: hidden and embedding in the wrong order")
def _(loop: Loop, value: None) -> Mutation:
    return _columns(loop, lambda w, half: torch.cat((w[:, half:], w[:, :half]), 1))


@fusion("drafter-fusion-half", "drafter: attention sees the {value} alone", values=("embedding", "hidden"))
def _(loop: Loop, value: str) -> Mutation:
    return _columns(loop, lambda w, half: w * ((torch.arange(2 * half) < half) == (value == "embedding")))


@fusion("drafter-norms-swapped", "drafter: input_layernorm and hidden_norm swapped")
def _(loop: Loop, value: None) -> Mutation:
    return exchanged(loop.drafter.midlayer.input_layernorm.weight, loop.drafter.midlayer.hidden_norm.weight)


@fusion(
    "drafter-layer-skipped",
    "a layer of the drafter does not run: {value}",
    stages=("drafter.layers.*.attn_out",),
    values=("the last one", 0, 1, 2),
    fix="num_hidden_layers: the drafter's own, the fusion layer counts among them",
    drafters=MODELS,
)
def _(loop: Loop, value: int | str) -> Mutation:
    """Its cache rows are zero, the stream goes by it."""
    config = loop.drafter.config
    number = config.num_layers - 1 if isinstance(value, str) else value
    ((_, skipped),) = drafter_layers(loop, number)
    if hasattr(skipped, "fusion"):
        raise NotApplicable("the fusion layer makes the stream")

    def forward(inner: Callable[..., Tensor], x: Tensor, tables: Any, mask: Tensor, cache: Any, tap: Any) -> Tensor:
        rows = x.new_zeros(x.shape[0], config.num_kv_heads, x.shape[1], config.head_dim)
        cache.extend(number, rows, rows)
        return x

    return foreign(skipped, "forward").around(forward)


fed = Family(by_side=True, stages=shows(BEHIND), layered=True, fix=RESIDUAL_FIX)

Norm = Callable[[Tensor], Tensor]
FED: dict[str, Callable[[Norm, Tensor, Tensor, Norm], Tensor]] = {
    "before": lambda norm, x, before, first: norm(before),
    "branch": lambda norm, x, before, first: norm(x - before),
    "shared": lambda norm, x, before, first: first(before),
}
"""Of the second norm, the stream behind the attention and before it, and the first norm: what the MLP takes."""


def mlp_input(loop: Loop, value: Layers, side: str, what: str) -> Mutation:
    """The MLP of these layers is fed from something else than the stream behind the attention; the stream stays."""
    return together(_fed(layer, side, what) for _, layer in layers_of(loop, side, value))


@contextmanager
def _fed(layer: Layer, side: str, what: str) -> Iterator[None]:
    seen: dict[str, Tensor] = {}
    # The first norm's forward, without its hook: these rows are no stage of their own.
    first = getattr(layer, "hidden_norm", None) or layer.input_layernorm

    def after_attention(inner: Callable[..., Tensor], x: Tensor, attn_out: Tensor) -> Tensor:
        seen["before"] = x
        return inner(x, attn_out)

    if side == "target":
        before = entering(layer, lambda x: seen.update(before=x))
    else:
        before = layer.after_attention.around(after_attention)
    second = foreign(layer.post_attention_layernorm, "forward")
    with before, second.around(lambda inner, x: FED[what](inner, x, seen["before"], first.forward)):
        yield


for id, what, says in (
    ("mlp-before-attention", "before", "the layer's input, without the attention"),
    ("mlp-of-branch", "branch", "the attention's output alone"),
    ("mlp-parallel", "shared", "the first norm's output, as beside the attention"),
):
    fed.both(f"residual-{id}", f"the MLP is fed from {says}; the residual stream is right")(
        partial(mlp_input, what=what)
    )
