"""Other context behind a block: rows that do not belong there, keys and values that are made another way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from parity.references.hypotheses import norms, projections, rope
from parity.references.hypotheses.block import CONTEXT_FIX
from parity.references.hypotheses.catalogue import DENOISING, Family, Hypothesis, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import (
    Layers,
    drafter_layers,
    exchanged,
    hidden_norm_of,
    reweighted,
    together,
)
from parity.references.hypotheses.rolled_back import IN_PLACE, rolled_back, rolled_back_in_place
from parity.references.hypotheses.steps import of_drafter_rows
from parity.references.points import foreign

if TYPE_CHECKING:
    from parity.references.block import BlockLoop
    from parity.references.hf_target import HFTarget

KEYS_FIX = "context rows go through hidden_norm, then through each layer's own k_proj, k_norm and v_proj"
HEADS_FIX = "q and k of each head are normed, with q_norm and k_norm, before they turn"

context = Family(drafters=DENOISING, stages=("kv.drafter.*",), fix=KEYS_FIX)


@context(
    "block-context-rejected",
    "the context has rows of rejected drafts as well, and the next ones go {value}",
    stages=("drafter.taps",),
    values=("where they should", "behind them"),
    fix=CONTEXT_FIX,
    seen=("class of rollback shortcuts",),
    cost=2,
)
def _(loop: Loop, value: str) -> Mutation:
    surplus = [0]

    def commit(inner: Callable[[int], None], length: int) -> None:
        inner(length)
        loop.state.pending_taps = loop.taps(0, loop.k + 1)
        surplus[:] = [loop.k + 1 - length if value == "where they should" else 0]

    def draft(inner: Callable[[], Tensor]) -> Tensor:
        drafts = inner()
        loop.state.draft_length -= surplus[0]
        return drafts

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        surplus[:] = [0]
        inner(prompt)

    return together((loop.prefill.around(prefill), loop.commit.around(commit), loop.draft.around(draft)))


@context(
    "block-prefill-whole",
    "the prefill writes the prompt's last context row too, and the first round writes it again, {value}",
    stages=("drafter.taps",),
    values=("in its place", "behind it"),
    fix="the prompt's last row waits for the first round",
)
def _(loop: Loop, value: str) -> Mutation:
    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        inner(torch.cat((prompt, prompt[-1:])))
        loop.state.draft_length -= value == "in its place"

    return loop.prefill_drafter.around(prefill)


def _kept(loop: Loop, value: str, change: Callable[[int, int, int, int], int]) -> Mutation:
    """The commit keeps `change(right, held, emitted, C)` rows; the next ones go behind those, or where they should."""
    emitted, committed = [0], [0]

    def draft(inner: Callable[[], Tensor]) -> Tensor:
        committed[:] = [len(loop.state.pending_taps)]
        return inner()

    def commit(inner: Callable[[int], None], length: int) -> None:
        emitted[:] = [length]
        inner(length)

    keep = rolled_back_in_place if value else rolled_back
    kept = keep(loop, "drafter", lambda right, held: change(right, held, emitted[0], committed[0]))
    return together((kept, loop.draft.around(draft), loop.commit.around(commit)))


kept = context.part(_kept, values=("", IN_PLACE), fix=CONTEXT_FIX, cost=2)
kept(
    "block-emitted-kept", "as many of the block's rows as there are emitted tokens stay in the cache as context{value}"
)(lambda right, held, emitted, committed: min(right + emitted, held))
kept("block-context-dropped", "the context rows of a round are dropped with its block{value}")(
    lambda right, held, emitted, committed: max(right - committed, 0)
)


@context(
    "block-stays",
    "rows of the block stay in the cache, the context goes behind them at its own positions; handed over are {value}",
    stages=("kv.drafter.*", "drafter.slots"),
    values=("all rows", "as many as there are tokens"),
    fix=CONTEXT_FIX,
    cost=2,
)
@contextmanager
def _(loop: Loop, value: str) -> Iterator[None]:
    stale = [0]

    def places(inner: Callable[..., Tensor], context: int, rows: int) -> Tensor:
        return inner(context, rows) - stale[0]

    def commit(inner: Callable[[int], None], length: int) -> None:
        state, given = loop.state, loop.state.draft_length - stale[0]
        with (
            loop.state.cache.crop.around(lambda crop, many: None),
            loop.hand_over_caches.around(lambda hand_over: None),
        ):
            inner(length)
        held = dict(state.cache.rows)
        state.draft_length = held[0][0].shape[2]
        stale[:] = [state.draft_length - given]
        if value != "all rows":
            state.cache.rows = {layer: (k[:, :, :given], v[:, :, :given]) for layer, (k, v) in held.items()}
        loop.hand_over_caches()
        if value != "all rows":
            state.cache.rows = {
                layer: (
                    torch.cat((k, held[layer][0][:, :, given:]), 2),
                    torch.cat((v, held[layer][1][:, :, given:]), 2),
                )
                for layer, (k, v) in state.cache.rows.items()
            }

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        stale[:] = [0]
        inner(prompt)

    with loop.positions.around(places), loop.commit.around(commit), loop.prefill_drafter.around(prefill):
        yield


def in_context(loop: Loop, value: Any, apply: Callable[[Loop, Any], Mutation]) -> Mutation:
    """A mutation in force while context rows are written, and only then."""

    def context(inner: Callable[..., None], *rows: Tensor) -> None:
        with apply(loop, value):
            inner(*rows)

    return cast("BlockLoop[HFTarget]", loop).context.around(context)


def in_block(loop: Loop, value: Any, apply: Callable[[Loop, Any], Mutation]) -> Mutation:
    """A mutation in force while the block's rows run, and only then."""

    def trunk(inner: Callable[..., Tensor], *rows: Any) -> Tensor:
        with apply(loop, value):
            return inner(*rows)

    return cast("BlockLoop[HFTarget]", loop).drafter.trunk.around(trunk)


@context(
    "block-context-layer",
    "keys and values of the context are those of layer {value} in all layers",
    values=(0, "the last"),
)
def _(loop: Loop, value: int | str) -> Mutation:
    def theirs(loop: Loop, value: int | str) -> Mutation:
        layers = [layer.self_attn for _, layer in drafter_layers(loop)]
        one = layers[-1 if isinstance(value, str) else value]
        parts = ("k_proj", "k_norm", "v_proj")
        return together(
            reweighted(getattr(other, part).weight, getattr(one, part).weight.data)
            for other in layers
            if other is not one
            for part in parts
        )

    return in_context(loop, value, theirs)


@context(
    "block-context-input-norm",
    "context rows go through each layer's input norm {value}",
    values=("as well", "in place of the hidden norm"),
    layered=False,
)
def _(loop: Loop, value: str) -> Mutation:
    def normed(loop: Loop, value: str) -> Mutation:
        own = together(
            layer.self_attn.keys.around(
                lambda inner, x, turns, norm=layer.input_layernorm: inner(norm.forward(x), turns)
            )
            for _, layer in drafter_layers(loop)
        )
        if value == "as well":
            return own
        return together((own, foreign(hidden_norm_of(loop), "forward").around(lambda inner, x: x)))

    return in_context(loop, value, normed)


@context(
    "block-hidden-norm-final", "the hidden norm is the final one's {value}", values=("weight", "weight, and it its")
)
def _(loop: Loop, value: str) -> Mutation:
    hidden, final = hidden_norm_of(loop).weight, loop.drafter.norm.weight
    return reweighted(hidden, final.data) if value == "weight" else exchanged(hidden, final)


heads = Family(drafters=DENOISING, layered=True, stages=("drafter.layers.*.attn_out",), fix=HEADS_FIX)


def _attentions(loop: Loop, value: Layers) -> list[Any]:
    return [layer.self_attn for _, layer in drafter_layers(loop, value)]


def _normless(loop: Loop, value: Layers) -> Mutation:
    norms = (norm for attention in _attentions(loop, value) for norm in (attention.q_norm, attention.k_norm))
    return together(foreign(norm, "forward").around(lambda inner, x: x) for norm in norms)


def _late(loop: Loop, value: Layers) -> Mutation:
    """The norms' own functions, behind the rotation."""

    def turned(attention: Any) -> Mutation:
        q_norm, k_norm = attention.q_norm.forward, attention.k_norm.forward

        def turn(inner: Callable[..., Any], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
            q, k = inner(q, k, cos, sin)
            return q_norm(q), k_norm(k)

        around: Mutation = attention.turn.around(turn)
        return around

    return together((*map(turned, _attentions(loop, value)), _normless(loop, value)))


def _whole(loop: Loop, value: Layers) -> Mutation:
    """One norm over all heads of a row."""

    def over(inner: Callable[[Tensor], Tensor], x: Tensor, norm: Any) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean((-2, -1), keepdim=True) + norm.eps)
        normed: Tensor = norm.weight * wide.to(x.dtype)
        return normed

    norms = (norm for attention in _attentions(loop, value) for norm in (attention.q_norm, attention.k_norm))
    return together(foreign(norm, "forward").around(partial(over, norm=norm)) for norm in norms)


def _swapped(loop: Loop, value: Layers) -> Mutation:
    return together(exchanged(one.q_norm.weight, one.k_norm.weight) for one in _attentions(loop, value))


def _shared(loop: Loop, value: Layers, one: str, other: str) -> Mutation:
    return together(
        reweighted(getattr(each, other).weight, getattr(each, one).weight.data) for each in _attentions(loop, value)
    )


heads("block-heads-plain", "neither q nor k of a head is normed, as in a Llama")(_normless)
heads("block-heads-late", "q and k of each head are normed behind the rotation")(_late)
heads("block-heads-whole", "q and k are normed over all heads together")(_whole)
heads("block-heads-swapped", "q_norm and k_norm have each other's weight")(_swapped)
heads("block-heads-q-of-k", "q_norm has k_norm's weight")(partial(_shared, one="k_norm", other="q_norm"))
heads("block-heads-k-of-q", "k_norm has q_norm's weight")(partial(_shared, one="q_norm", other="k_norm"))

OF_KEYS = (rope.schedules, rope.tables, rope.late, rope.forms, projections.layouts, norms.norms, heads)
"""What happens to keys and values, whichever rows they are of."""

NOT_OF_KEYS = (
    "rope-missing-q",
    "rope-in-place-q",
    "rope-in-place-back-q",
    "load-q",
    "load-o",
    "norm-input",
    "norm-hidden",
    "norm-q",
    "norm-eps",
    "block-heads-q",
)
"""What begins so has nothing to do with them, or with one kind of rows alone."""

PLACES = (
    ("context", in_context, "on context rows alone", "the code that writes the context, which is right for the block"),
    ("block", in_block, "on the block alone", "the code of the block, which is right for context rows"),
)


def _of_keys(hypothesis: Hypothesis) -> bool:
    """Whether a hypothesis is about what a DFlash drafter's keys and values are made by."""
    stage = hypothesis.stages[0]
    attends = stage.startswith("drafter.layers.") and stage.endswith(".attn_out")
    return hypothesis.about(*DENOISING) and attends and not hypothesis.id.startswith(NOT_OF_KEYS)


HYPOTHESES = [
    of_drafter_rows(hypothesis, *place, DENOISING)
    for place in PLACES
    for family in OF_KEYS
    for hypothesis in family.hypotheses
    if _of_keys(hypothesis) and hypothesis.values
]
