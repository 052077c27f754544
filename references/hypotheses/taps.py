"""Other residual streams, or other rows of them, where the drafter's taps should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product

from parity.references.hypotheses.catalogue import FACTOR, Family, Mutation
from parity.references.hypotheses.inference import Ratio
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import (
    Layer,
    NotApplicable,
    entering,
    leaving,
    rows_from,
    target_layers,
    together,
)
from parity.references.points import replaced

TAP_FIX = "the layer at which the target's hidden is captured: in_of[l] is out_of[l - 1]"
PAIR_FIX = "the slice that pairs the drafter's rows with the target's: row p has token p + 1 and the hidden of p"
BRANCH_FIX = "fused add and norm: capture hidden + residual, not hidden"
BUFFER_FIX = "the buffer that hands taps from verify to the next draft"
ORDERS = ((2, 1, 0), (1, 0, 2), (0, 2, 1), (1, 2, 0), (2, 0, 1))

tap = Family(stages=("drafter.taps",), fix=TAP_FIX)


def from_layers(loop: Loop, change: Callable[[list[int], int], list[int]]) -> Mutation:
    """Tap the layers that `change(the in_of layers, L)` gives."""
    layers = loop.target.config.num_hidden_layers
    taps = tuple(change(list(loop.tap_inputs), layers))
    if taps == tuple(loop.tap_inputs) or not all(0 <= layer <= layers for layer in taps):
        raise NotApplicable(f"taps {taps} of {layers} layers")
    return replaced(loop, "tap_inputs", taps)


@tap("tap-off-by-one", "taps {value:+d} layers away", values=(1, -1, 2, -2), seen=("NKIPy PR 63", "SGLang #25454"))
def shifted(loop: Loop, delta: int) -> Mutation:
    """All taps `delta` layers later."""
    return from_layers(loop, lambda taps, layers: [layer + delta for layer in taps])


@tap(
    "tap-one-off",
    "one tap, (place, layers): {value}, is from another layer",
    values=product(range(3), (1, -1, 2, -2, 3, -3)),
)
def _(loop: Loop, value: tuple[int, int]) -> Mutation:
    wrong, delta = value
    return from_layers(loop, lambda taps, layers: [tap + delta * (place == wrong) for place, tap in enumerate(taps)])


RULES: dict[str, Callable[[list[int], int], list[int]]] = {
    "default": lambda taps, layers: [2, layers // 2, layers - 3],
    "default as out_of": lambda taps, layers: [3, layers // 2 + 1, layers - 2],
    "low, middle, high": lambda taps, layers: [1, layers // 2, layers - 1],
    "thirds": lambda taps, layers: [layers // 3, 2 * layers // 3, layers],
    "last": lambda taps, layers: list(range(layers - len(taps) + 1, layers + 1)),
    "the final layer only": lambda taps, layers: [layers] * len(taps),
    "the last one only": lambda taps, layers: taps[-1:] * len(taps),
    "the first one only": lambda taps, layers: taps[:1] * len(taps),
}


@tap(
    "tap-config-ignored",
    "the drafter's tap list is ignored, another rule is used: {value}",
    values=RULES,
    fix="reading eagle_aux_hidden_state_layer_ids of the drafter's config.json",
    seen=("tokenspeed #526",),
)
def _(loop: Loop, rule: str) -> Mutation:
    return from_layers(loop, RULES[rule])


@tap(
    "tap-order",
    "taps concatenated in the order {value}",
    values=ORDERS,
    fix="the order in which captured hiddens are concatenated: the config's, not the order of capture",
    seen=("vLLM sorts and de-duplicates aux layer ids",),
)
def _(loop: Loop, order: tuple[int, ...]) -> Mutation:
    if sorted(order) != list(range(len(loop.tap_inputs))):
        raise NotApplicable(f"{len(loop.tap_inputs)} taps")
    return from_layers(loop, lambda taps, layers: [taps[place] for place in order])


@tap(
    "tap-after-norm",
    "taps taken behind the target's {value} norm",
    values=("final", "input"),
    fix="the place of the capture: the residual stream itself, before any norm",
    seen=("SGLang #32334",),
)
def _(loop: Loop, norm: str) -> Mutation:
    body = loop.target.model.model

    def of(layer: int) -> Layer:
        return body.norm if norm == "final" or layer == len(body.layers) else body.layers[layer].input_layernorm

    # Without the modules' hooks: these rows are no stage of the target.
    return _from_streams(loop, lambda layer: of(layer).forward(loop.target.streams[layer]))


def _from_streams(loop: Loop, of: Callable[[int], Tensor]) -> Mutation:
    """`of(layer)` in place of the stream that enters a layer."""
    return loop.target.taps.around(lambda inner, inputs: torch.cat([of(layer) for layer in inputs], dim=-1))


def _keep(seen: dict[int, Tensor], number: int, output: Tensor | tuple[Tensor, ...]) -> None:
    seen[number] = (output[0] if isinstance(output, tuple) else output)[0].clone()


@contextmanager
def branch(loop: Loop, value: None, module: str) -> Iterator[None]:
    """The branch of the tapped layer (`self_attn` or `mlp`) without the residual stream."""
    seen: dict[int, Tensor] = {}
    layers = target_layers(loop)
    branches = together(leaving(getattr(layer, module), partial(_keep, seen, number)) for number, layer in layers)
    if 0 in loop.tap_inputs:
        raise NotApplicable("the embedding is no layer's branch")
    with branches, _from_streams(loop, lambda layer: seen[layer - 1]):
        yield


tap(
    "tap-without-residual",
    "taps are the attention branch without the residual stream",
    fix=BRANCH_FIX,
    seen=("TRT-LLM #6199",),
)(partial(branch, module="self_attn"))


@tap(
    "tap-behind-attention",
    "taps taken between attention and experts: {value}",
    values=("of the layer before", "of the layer that the tap enters"),
    fix="the place of the capture: behind a layer's second residual sum",
)
@contextmanager
def _(loop: Loop, value: str) -> Iterator[None]:
    seen: dict[int, Tensor] = {}
    layers, back = target_layers(loop), int(value == "of the layer before")
    if any(not 0 <= layer - back < len(layers) for layer in loop.tap_inputs):
        raise NotApplicable("no such layer")
    halves = together(
        entering(layer.post_attention_layernorm, partial(_keep, seen, number)) for number, layer in layers
    )
    with halves, _from_streams(loop, lambda layer: seen[layer - back]):
        yield


tap("tap-mlp-branch", "taps are the MLP branch without the residual stream", fix=BRANCH_FIX, seen=("TRT-LLM #6199",))(
    partial(branch, module="mlp")
)


@tap("tap-layer-branches", "taps are what a layer adds, without the residual stream that enters it", fix=BRANCH_FIX)
def _(loop: Loop, value: None) -> Mutation:
    if 0 in loop.tap_inputs:
        raise NotApplicable("the embedding is added by no layer")
    return _from_streams(loop, lambda layer: loop.target.streams[layer] - loop.target.streams[layer - 1])


@tap(
    "input-hidden-one-step-late",
    "each row carries the hidden {value:+d} rows away",
    values=(1, -1, 2),
    fix=PAIR_FIX,
    seen=("NKIPy PR 63",),
)
def _(loop: Loop, delta: int) -> Mutation:
    return loop.taps.around(lambda inner, first, end: _moved(loop, first, end, delta))


def _moved(loop: Loop, first: int, end: int, delta: int) -> Tensor:
    """Rows of what the target ran last, `delta` later; its last (first) row where there is none."""
    rows = loop.target.taps(loop.tap_inputs)
    return rows[torch.arange(first, end).add(delta).clamp(0, len(rows) - 1)]


@tap(
    "tap-last-row-only",
    "all committed rows of a pass carry the last row's hidden",
    fix="the target returns the hidden of all its rows, not of the one that is sampled",
)
def _(loop: Loop, value: None) -> Mutation:
    return loop.taps.around(lambda inner, first, end: inner(first, end)[-1:].expand(end - first, -1))


@tap("tap-stale", "a round's rows carry the hidden of the round before", fix=BUFFER_FIX, cost=2)
def _(loop: Loop, value: None) -> Mutation:
    before: list[Tensor] = []

    def taps(inner: Callable[..., Tensor], first: int, end: int) -> Tensor:
        rows, fresh = list(before), inner(first, end)
        before[:] = [fresh]
        if not rows or len(loop.state.emitted) == 1:
            return fresh
        return rows[0][torch.arange(len(rows[0]) - len(fresh), len(rows[0])).clamp(0)]

    return loop.taps.around(taps)


@tap(
    "tap-buffer-stale",
    "a round's rows carry {value} of what the target ran in the pass before",
    values=("the rows it kept", "the first rows", "the last rows", "the same rows"),
    fix=BUFFER_FIX,
    cost=2,
)
@contextmanager
def _(loop: Loop, which: str) -> Iterator[None]:
    """ "the rows it kept" start at the prefill's last one, "the same rows" are fresh behind it."""
    passes: list[tuple[Tensor, int]] = []

    def forward(inner: Callable[..., Tensor], ids: Tensor) -> Tensor:
        logits = inner(ids)
        passes.append((loop.target.taps(loop.tap_inputs).clone(), 0 if loop.state.length else len(ids) - 1))
        del passes[:-2]
        return logits

    def taps(inner: Callable[..., Tensor], first: int, end: int) -> Tensor:
        fresh = inner(first, end)
        if len(loop.state.emitted) == 1 or len(passes) < 2:
            return fresh
        (before, kept), (last, _) = passes
        if which == "the same rows" and len(before) != len(last):
            return fresh
        if which == "the rows it kept":
            return rows_from(before, kept, end - first)
        start = max(len(before) - (end - first), 0) if which == "the last rows" else 0
        return before[start + torch.arange(end - first).clamp(max=len(before) - 1)]

    def prefill(inner: Callable[..., None], prompt: Tensor) -> None:
        passes.clear()
        inner(prompt)

    with loop.target.forward.around(forward), loop.taps.around(taps), loop.prefill.around(prefill):
        yield


@tap(
    "tap-verify-rows",
    "after verify the committed rows carry its hiddens {value} (a number: so many rows later)",
    values=("the last ones", 1, -1),
    fix="the slice of verify's K+1 hiddens: the first of them, as many as were emitted",
    cost=2,
)
def _(loop: Loop, value: int | str) -> Mutation:
    def taps(inner: Callable[..., Tensor], first: int, end: int) -> Tensor:
        if len(loop.state.emitted) == 1:
            return inner(first, end)
        last = len(loop.target.taps(loop.tap_inputs)) - end
        return _moved(loop, first, end, last if isinstance(value, str) else value)

    return loop.taps.around(taps)


@tap(
    "tap-precision",
    "taps pass through {value}",
    values=("float8_e4m3fn", "float8_e5m2"),
    fix="the dtype of the tap buffer",
)
def _(loop: Loop, dtype: str) -> Mutation:
    return loop.taps.around(lambda inner, *rows: (x := inner(*rows)).to(getattr(torch, dtype)).to(x.dtype))


@tap(
    "tap-scaled",
    "taps are {value:.4g} times what they should be",
    values=(),
    fit=FACTOR,
    infer=Ratio("drafter.taps"),
    fix="a scale between the target's hidden and the drafter, or hidden + residual added twice",
)
def _(loop: Loop, factor: float) -> Mutation:
    return loop.taps.around(lambda inner, *rows: inner(*rows) * factor)
