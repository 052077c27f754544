"""Other residual streams, or other rows of them, where the drafter's taps should be."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from parity.references.mutations import NotApplicable, replaced, rows_from, wrapped


def from_layers(loop: Any, change: Callable[[list[int], int], list[int]]) -> AbstractContextManager:
    """Tap the layers that `change(the in_of layers, L)` gives."""
    layers = loop.target.config.num_hidden_layers
    taps = tuple(change(list(loop.tap_inputs), layers))
    if taps == tuple(loop.tap_inputs) or not all(0 <= layer <= layers for layer in taps):
        raise NotApplicable(f"taps {taps} of {layers} layers")
    return replaced(loop, "tap_inputs", taps)


def shifted(loop: Any, delta: int) -> AbstractContextManager:
    """All taps `delta` layers later."""
    return from_layers(loop, lambda taps, layers: [tap + delta for tap in taps])


def one_shifted(loop: Any, value: tuple[int, int]) -> AbstractContextManager:
    """One of the taps, by its place, so many layers later."""
    place, delta = value
    return from_layers(loop, lambda taps, layers: [tap + delta * (number == place) for number, tap in enumerate(taps)])


def ordered(loop: Any, order: tuple[int, ...]) -> AbstractContextManager:
    """The right taps in another order."""
    if sorted(order) != list(range(len(loop.tap_inputs))):
        raise NotApplicable(f"{len(loop.tap_inputs)} taps")
    return from_layers(loop, lambda taps, layers: [taps[place] for place in order])


def by_rule(loop: Any, rule: str) -> AbstractContextManager:
    """The taps of a rule of thumb instead of the configured ones."""
    rules = {
        "default": lambda taps, layers: [2, layers // 2, layers - 3],
        "default as out_of": lambda taps, layers: [3, layers // 2 + 1, layers - 2],
        "low, middle, high": lambda taps, layers: [1, layers // 2, layers - 1],
        "thirds": lambda taps, layers: [layers // 3, 2 * layers // 3, layers],
        "last": lambda taps, layers: list(range(layers - len(taps) + 1, layers + 1)),
        "the last one only": lambda taps, layers: taps[-1:] * len(taps),
        "the first one only": lambda taps, layers: taps[:1] * len(taps),
        "the final layer only": lambda taps, layers: [layers] * len(taps),
    }
    return from_layers(loop, rules[rule])


@contextmanager
def branch(loop: Any, part: str, module: str):
    """The branch of the tapped layer (`self_attn` or `mlp`) without the residual stream."""
    seen: dict[int, torch.Tensor] = {}
    keep = lambda number: lambda layer, args, output: seen.update({number: output[0][0].clone()})  # noqa: E731
    layers = loop.target.model.model.layers
    hooks = [getattr(layer, module).register_forward_hook(keep(number)) for number, layer in enumerate(layers)]
    try:
        if 0 in loop.tap_inputs:
            raise NotApplicable("the embedding is no layer's branch")
        with replaced(loop.target, "taps", lambda inputs: torch.cat([seen[layer - 1] for layer in inputs], dim=-1)):
            yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def behind_attention(loop: Any, value: str):
    """The stream between the two halves of a layer: of the one that the tap enters, or of the one that it leaves."""
    seen: dict[int, torch.Tensor] = {}
    keep = lambda number: lambda norm, args: seen.update({number: args[0][0].clone()})  # noqa: E731
    layers = loop.target.model.model.layers
    hooks = [l.post_attention_layernorm.register_forward_pre_hook(keep(number)) for number, l in enumerate(layers)]
    back = int(value == "of the layer before")
    try:
        if any(not 0 <= layer - back < len(layers) for layer in loop.tap_inputs):
            raise NotApplicable("no such layer")
        taps = lambda inputs: torch.cat([seen[layer - back] for layer in inputs], dim=-1)  # noqa: E731
        with replaced(loop.target, "taps", taps):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def normed(loop: Any, norm: str) -> AbstractContextManager:
    """Taps behind a norm: the target's final one, or the input norm of the layer that the stream enters."""
    body = loop.target.model.model

    def of(layer: int):
        return body.norm if norm == "final" or layer == len(body.layers) else body.layers[layer].input_layernorm

    def taps(inputs):
        # Without the modules' hooks: these rows are no stage of the target.
        return torch.cat([of(layer).forward(loop.target.streams[layer]) for layer in inputs], dim=-1)

    return replaced(loop.target, "taps", taps)


def rows_shifted(loop: Any, delta: int) -> AbstractContextManager:
    """Each row carries the hidden `delta` rows later; the last (first) row stands in where there is none."""

    def taps(inner, first, end):
        rows = loop.target.taps(loop.tap_inputs)
        return rows[torch.arange(first, end).add(delta).clamp(0, len(rows) - 1)]

    return wrapped(loop, "_taps", taps)


def last_row_repeated(loop: Any, value: None) -> AbstractContextManager:
    """All committed rows of a round carry the last one's hidden."""
    return wrapped(loop, "_taps", lambda inner, first, end: inner(first, end)[-1:].expand(end - first, -1))


def stale(loop: Any, value: None) -> AbstractContextManager:
    """A verify round's rows carry the hidden of the round before (of its last rows)."""
    before: dict[str, torch.Tensor] = {}

    def taps(inner, first, end):
        rows, fresh = before.get("rows"), inner(first, end)
        before["rows"] = fresh
        if rows is None or loop.length == 0 or len(loop.emitted) == 1:
            return fresh
        return rows[torch.arange(len(rows) - len(fresh), len(rows)).clamp(0)]

    return wrapped(loop, "_taps", taps)


def verify_rows(loop: Any, value: int | str) -> AbstractContextManager:
    """The committed rows of a verify round carry others of its K+1 hiddens: so many rows later, or its last ones."""

    def taps(inner, first, end):
        if len(loop.emitted) == 1:
            return inner(first, end)
        rows = loop.target.taps(loop.tap_inputs)
        delta = len(rows) - end if value == "the last ones" else value
        return rows[torch.arange(first, end).add(delta).clamp(0, len(rows) - 1)]

    return wrapped(loop, "_taps", taps)


@contextmanager
def buffered(loop: Any, which: str):
    """A verify round's rows carry the first or the last rows of all that the target ran in the pass before.

    "the same rows" are those at the same places of the verify pass before, and fresh ones behind the prefill;
    "the rows it kept" start at the prefill's last one.
    """
    passes: list[tuple[torch.Tensor, int]] = []

    def forward(inner, ids):
        logits = inner(ids)
        passes.append((loop.target.taps(loop.tap_inputs).clone(), 0 if loop.length else len(ids) - 1))
        del passes[:-2]
        return logits

    def taps(inner, first, end):
        fresh = inner(first, end)
        if len(loop.emitted) == 1 or len(passes) < 2:
            return fresh
        (before, kept), (last, _) = passes
        if which == "the same rows" and len(before) != len(last):
            return fresh
        if which == "the rows it kept":
            return rows_from(before, kept, end - first)
        start = max(len(before) - (end - first), 0) if which == "the last rows" else 0
        return before[start + torch.arange(end - first).clamp(max=len(before) - 1)]

    def prefill(inner, prompt):
        passes.clear()
        return inner(prompt)

    with wrapped(loop.target, "forward", forward), wrapped(loop, "_taps", taps), wrapped(loop, "_prefill", prefill):
        yield


def rounded(loop: Any, dtype: str) -> AbstractContextManager:
    """Taps through another dtype on their way."""
    return wrapped(loop, "_taps", lambda inner, *rows: (x := inner(*rows)).to(getattr(torch, dtype)).to(x.dtype))


def scaled(loop: Any, factor: float) -> AbstractContextManager:
    """Taps times a factor."""
    return wrapped(loop, "_taps", lambda inner, *rows: inner(*rows) * factor)
