"""What norms, routers and experts are fed, and the weights that norms take from each other."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from parity.references.mutations import NotApplicable, layers_of, reweighted, together, wrapped
from parity.references.mutations.norms import norm, parts_of

INPUT, BEHIND = "input_layernorm", "post_attention_layernorm"


def other_weight(loop: Any, value: Any, side: str, how: str) -> AbstractContextManager:
    """A layer's norms with each other's weight: `how` is swapped, "input" (the mlp norm's goes to both), or "mlp"."""

    def contexts():
        for _, layer in layers_of(loop, side, value):
            one, other = getattr(layer, INPUT).weight, getattr(layer, BEHIND).weight
            some, others = one.data, other.data
            if how in ("swapped", "input"):
                yield reweighted(one, others)
            if how in ("swapped", "mlp"):
                yield reweighted(other, some)

    return together(list(contexts()))


def neighbour_weight(loop: Any, delta: int, side: str, part: str) -> AbstractContextManager:
    """A norm's weights from the layer `delta` later; the outermost layer keeps its own."""
    held = [getattr(layer, part).weight for _, layer in layers_of(loop, side)]
    theirs = [weight.data for weight in held]
    places = [place for place in range(len(held)) if 0 <= place + delta < len(held)]
    return together([reweighted(held[place], theirs[place + delta]) for place in places])


def final_weight(loop: Any, value: str, side: str) -> AbstractContextManager:
    """The final norm with another norm's weight."""
    body = loop.target.model.model if side == "target" else loop.drafter
    other = loop.drafter if side == "target" else loop.target.model.model
    layers = [layer for _, layer in layers_of(loop, side)]
    found = {
        "the last layer's mlp norm's": lambda: getattr(layers[-1], BEHIND),
        "the last layer's input norm's": lambda: getattr(layers[-1], INPUT),
        "the first layer's input norm's": lambda: getattr(layers[0], INPUT),
        "the hidden norm's": lambda: getattr(layers[0], "hidden_norm", None),
        "the other model's": lambda: other.norm,
    }[value]()
    if found is None:
        raise NotApplicable("no such norm")
    return reweighted(body.norm.weight, found.weight.data)


def everywhere(loop: Any, value: None, side: str, how: str) -> AbstractContextManager:
    """All norms of a side wrong in the same way."""
    return together([norm(loop, "all", side, part, how) for part in parts_of(side)])


def mlp_input(loop: Any, value: Any, side: str, what: str) -> AbstractContextManager:
    """The second norm of these layers is given something else than the stream behind the attention; the stream stays.

    `what`: "before" (the layer's input), "branch" (the attention's output alone), or "shared" (the first norm's
    output goes to the MLP as well, as in a parallel block).
    """
    return together(_fed(layer, side, what) for _, layer in layers_of(loop, side, value))


@contextmanager
def _fed(layer: torch.nn.Module, side: str, what: str):
    seen: dict[str, torch.Tensor] = {}

    def normed(inner, x):
        # The first norm's forward, without its hook: these rows are no stage of their own.
        first = getattr(layer, "hidden_norm", None) or layer.input_layernorm
        before = seen["before"]
        return {
            "before": lambda: inner(before),
            "branch": lambda: inner(x - before),
            "shared": lambda: first.forward(before),
        }[what]()

    if side == "target":
        handle = layer.register_forward_pre_hook(_keeping(seen), with_kwargs=True)
        try:
            with wrapped(layer.post_attention_layernorm, "forward", normed):
                yield
        finally:
            handle.remove()
        return

    def after_attention(inner, x, attn_out):
        seen["before"] = x
        return inner(x, attn_out)

    with wrapped(layer, "after_attention", after_attention), wrapped(layer.post_attention_layernorm, "forward", normed):
        yield


def _keeping(seen: dict[str, torch.Tensor]):
    return lambda module, args, kwargs: seen.update(before=args[0] if args else kwargs["hidden_states"])


def routed_from(loop: Any, value: Any, who: str, what: str) -> AbstractContextManager:
    """The router or the experts alone (`who`) are fed something else: the stream un-normed, or without the attention."""
    return together(_split(layer, who, what) for _, layer in layers_of(loop, "target", value))


@contextmanager
def _split(layer: torch.nn.Module, who: str, what: str):
    seen: dict[str, torch.Tensor] = {}

    def normed(inner, x):
        seen["fed"] = x if what == "un-normed" else inner(seen["before"])
        return inner(x)

    def forward(inner, hidden, *rest):
        return inner(seen["fed"].reshape(hidden.shape), *rest)

    handle = layer.register_forward_pre_hook(_keeping(seen), with_kwargs=True)
    try:
        with wrapped(layer.post_attention_layernorm, "forward", normed):
            with wrapped(getattr(layer.mlp, who), "forward", forward):
                yield
    finally:
        handle.remove()
