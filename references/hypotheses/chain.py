"""Other chains: what a chain row recycles, which token it carries, where it stands and where the chain begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from parity.references.hypotheses.catalogue import CHAIN, FACTOR, STEPS, Family, Mutation
from parity.references.hypotheses.context import seeing
from parity.references.hypotheses.inference import placeholder
from parity.references.hypotheses.inputs import moved
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import NotApplicable, together

RECYCLED_FIX = "a chain row takes the residual stream that the row before it left: before the final norm, past fc"
TOKEN_FIX = "a chain row embeds the draft before it, as an id of the target's vocabulary"
PLACE_FIX = "each chain row sits one position and one slot behind the row before it"
START_FIX = "the chain begins at the last committed row: its draft and its stream"
REFED_FIX = "accepted drafts are fed again with the target's taps; what was recycled for them is dropped"

chain = Family(drafters=STEPS, cost=2)


def _recycling(loop: Loop, value: Any, change: Callable[[Tensor], Tensor]) -> Mutation:
    """`change(hidden)` of what a chain row recycles [1, H]."""
    return loop.recycled.around(lambda inner, stream: change(inner(stream)))


recycled = chain.part(stages=("drafter.fc_out",), fix=RECYCLED_FIX, drafters=CHAIN)

NORMS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "the final norm": lambda drafter, x: drafter.norm.forward(x),
    "the hidden norm": lambda drafter, x: drafter.midlayer.hidden_norm.forward(x),
    "the layer's second norm": lambda drafter, x: drafter.midlayer.post_attention_layernorm.forward(x),
    "a norm without weight": lambda drafter, x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + drafter.config.eps),
}


@recycled(
    "drafter-recycles-post-norm",
    "chain rows recycle the stream behind {value}",
    values=NORMS,
    seen=("SpecForge #879",),
)
def _(loop: Loop, value: str) -> Mutation:
    return _recycling(loop, value, partial(NORMS[value], loop.drafter))


WIDENED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "repeated over its width": lambda x, width: x.repeat(1, -(-width // x.shape[1]))[:, :width],
    "zeros behind it": lambda x, width: torch.nn.functional.pad(x, (0, width - x.shape[1])),
    "zeros before it": lambda x, width: torch.nn.functional.pad(x, (width - x.shape[1], 0)),
}
"""Of a stream [1, H], the T * H_t columns that fc takes."""


@recycled("chain-recycled-fused", "the recycled stream goes through fc again, {value}", values=WIDENED)
def _(loop: Loop, value: str) -> Mutation:
    width = loop.drafter.fc.in_features
    if width < loop.drafter.config.hidden_size:
        raise NotApplicable("fc is narrower than the stream")
    return _recycling(loop, value, lambda x: loop.drafter.fuse(WIDENED[value](x, width)))


Parts = dict[str, Tensor]
PARTS: dict[str, Callable[[Parts, Tensor], Tensor]] = {
    "the MLP's output alone": lambda parts, x: parts["mlp"],
    "the attention's output alone": lambda parts, x: parts["attention"],
    "attention and MLP without what goes round them": lambda parts, x: parts["attention"] + parts["mlp"],
    "the stream between attention and MLP": lambda parts, x: parts["between"],
    "the stream plus the row's own hidden": lambda parts, x: x + parts["hidden"],
    "the stream plus the row's embedding": lambda parts, x: x + parts["embed"],
    "the stream plus the MLP's output": lambda parts, x: x + parts["mlp"],
    "the row's embedding": lambda parts, x: parts["embed"],
    "zeros": lambda parts, x: torch.zeros_like(x),
}
"""Of what the layer computed for the row before [1, H], and the stream that it left."""


@contextmanager
def of_parts(loop: Loop, change: Callable[[Parts, Tensor], Tensor]) -> Iterator[None]:
    """`change(parts, stream)` is recycled [1, H], of the row before."""
    parts: Parts = {}
    layer = loop.drafter.midlayer

    def residual(inner: Callable[..., Tensor], embed: Tensor, hidden: Tensor, normed: Tensor) -> Tensor:
        parts.update(embed=embed[0, -1:], hidden=hidden[0, -1:])
        return inner(embed, hidden, normed)

    def after_attention(inner: Callable[..., Tensor], x: Tensor, attn_out: Tensor) -> Tensor:
        between = inner(x, attn_out)
        parts.update(attention=attn_out[0, -1:], between=between[0, -1:])
        return between

    def after_mlp(inner: Callable[..., Tensor], x: Tensor, ffn_out: Tensor) -> Tensor:
        parts["mlp"] = ffn_out[0, -1:]
        return inner(x, ffn_out)

    layers = (
        layer.residual.around(residual),
        layer.after_attention.around(after_attention),
        layer.after_mlp.around(after_mlp),
    )
    recycling = loop.recycled.around(lambda inner, stream: change(parts, inner(stream)))
    with together((*layers, recycling)):
        yield


@recycled("chain-recycled-part", "chain rows recycle {value}", values=PARTS, seen=("class of TRT-LLM #6199",))
def _(loop: Loop, value: str) -> Mutation:
    return of_parts(loop, PARTS[value])


@recycled(
    "chain-recycled-stale",
    "chain rows do not take the stream of the row before: they keep {value}",
    values=("the hidden that it took", "the last committed row's fused hidden"),
)
@contextmanager
def _(loop: Loop, value: str) -> Iterator[None]:
    fused: list[Tensor] = []

    def first(inner: Callable[..., Tensor], taps: Tensor, behind: int) -> Tensor:
        fused[:] = [inner(taps, behind)[-1:]]
        return inner(taps, behind)

    kept = of_parts(loop, lambda parts, x: parts["hidden"] if value == "the hidden that it took" else fused[0])
    with loop.fused.around(first), kept:
        yield


ROWS: dict[str, Callable[[list[Tensor], list[Tensor]], Tensor]] = {
    "one row further back": lambda streams, before: torch.cat(streams)[-2:][:1],
    "the first row of the pass before": lambda streams, before: streams[-1][:1],
    "the row before the last one of the first pass, then the last": lambda streams, before: streams[-1][-2:][:1],
    "the first pass, in every step": lambda streams, before: streams[0][-1:],
    "the first row of the round, in every step": lambda streams, before: streams[0][:1],
    "the round before": lambda streams, before: before[-1][-1:] if before else streams[-1][-1:],
}
"""Of the streams that the passes of this round and of the round before left, [n, H] each."""


@recycled("chain-recycled-row", "chain rows recycle the stream of another row: {value}", values=ROWS)
def _(loop: Loop, value: str) -> Mutation:
    streams, before = list[Tensor](), list[Tensor]()

    def draft(inner: Callable[[], Tensor]) -> Tensor:
        before[:], streams[:] = ([] if len(loop.state.emitted) == 1 else streams), []
        return inner()

    def choose(inner: Callable[..., Tensor], stream: Tensor) -> Tensor:
        streams.append(stream)
        return ROWS[value](streams, before)

    return together((loop.draft.around(draft), loop.recycled.around(choose)))


@recycled(
    "chain-recycled-scaled", "what chain rows recycle is {value:.4g} times what it should be", values=(), fit=FACTOR
)
def _(loop: Loop, value: float) -> Mutation:
    return _recycling(loop, value, lambda x: x * value)


@chain(
    "chain-refed-streams",
    "committed rows carry the streams that the chain recycled, not their taps through fc: {value}",
    stages=("drafter.fc_out",),
    values=("those of accepted drafts", "all that a draft stood for"),
    fix=REFED_FIX,
    seen=("vLLM #14649",),
    drafters=CHAIN,
)
def _(loop: Loop, value: str) -> Mutation:
    """Row i of a round holds draft i of the round before, for which its chain recycled stream i."""
    streams: list[Tensor] = []

    def recycle(inner: Callable[..., Tensor], stream: Tensor) -> Tensor:
        streams.append(inner(stream))
        return streams[-1]

    def fused(inner: Callable[..., Tensor], taps: Tensor, behind: int) -> Tensor:
        rows = inner(taps, behind)
        many = min(len(streams), len(rows) - (value == "those of accepted drafts"))
        kept = torch.cat((*streams[:many], rows[many:]))
        streams.clear()
        return kept

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        streams.clear()
        inner(prompt)

    return together((loop.prefill.around(prefill), loop.recycled.around(recycle), loop.fused.around(fused)))


tokens = chain.part(stages=("drafter.input_ids",), fix=TOKEN_FIX)


@tokens(
    "chain-token-unmapped",
    "chain rows embed drafts by {value}",
    values=("their ids in the draft vocabulary", "ids mapped twice"),
    seen=("Automodel #2447",),
    drafters=CHAIN,
)
def _(loop: Loop, value: str) -> Mutation:
    drafter = loop.drafter
    if not drafter.d2t.any():
        raise NotApplicable("draft and target vocabulary are the same")

    def unmapped(inner: Callable[..., Tensor], draft: Tensor) -> Tensor:
        ids = drafter.d2t + torch.arange(len(drafter.d2t))
        return (ids == inner(draft)).nonzero()[:1, 0]

    def twice(inner: Callable[..., Tensor], draft: Tensor) -> Tensor:
        id = inner(draft)
        return id + drafter.d2t[id.clamp(max=len(drafter.d2t) - 1)]

    return loop.drafted.around(twice if value == "ids mapped twice" else unmapped)


KNOWN: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "the token of the row before": lambda known: known[-2],
    "the last committed token": lambda known: known[0],
    "the first draft": lambda known: known[1],
}
"""Of the last committed token and the drafts so far, [1] each."""


@tokens("chain-token-late", "chain rows hold {value}", values=KNOWN)
def _(loop: Loop, value: str) -> Mutation:
    known: list[Tensor] = []

    def draft(inner: Callable[[], Tensor]) -> Tensor:
        known[:] = [torch.tensor(loop.state.emitted[-1:])]
        return inner()

    def drafted(inner: Callable[..., Tensor], token: Tensor) -> Tensor:
        known.append(inner(token))
        return KNOWN[value](known)

    return together((loop.draft.around(draft), loop.drafted.around(drafted)))


@tokens("chain-token-constant", "chain rows hold the id {value}", values=("pad", "eos", "bos", 0), infer=placeholder)
def _(loop: Loop, value: int | str) -> Mutation:
    target = loop.target.config
    named = {"pad": target.pad_token_id, "bos": target.bos_token_id, "eos": loop.eos[0] if loop.eos else None}
    token = named[value] if isinstance(value, str) else value
    if token is None or not 0 <= token < loop.drafter.config.vocab_size:
        raise NotApplicable(f"id {token}")
    return loop.drafted.around(lambda inner, draft: torch.full_like(draft, int(token)))


PLACES: dict[str, Callable[[int, int, Tensor], Tensor]] = {
    "their number in the chain, from 0": lambda first, last, number: number - 1,
    "their number in the chain, from 1": lambda first, last, number: number,
    "counted on from the round's first row": lambda first, last, number: first + number,
    "counted on from the slot behind the cache": lambda first, last, number: first + number - 1,
    "two further each": lambda first, last, number: last + 2 * number,
}
"""Of the positions of the round's first row and of the last committed one, and the number of a chain row, from 1."""


def placed(loop: Loop, value: str, of: str = "positions") -> Mutation:
    """Positions or slots of chain rows that are counted in another way."""

    def move(inner: Callable[..., Tensor], committed: int, behind: int) -> Tensor:
        true = inner(committed, behind)
        if not committed or not behind:
            return true
        number = torch.arange(1, behind + 1)
        return torch.cat((true[:committed], PLACES[value](int(true[0]), int(true[committed - 1]), number)))

    return (loop.slots if of == "slots" else loop.positions).around(move)


chain("chain-positions", "chain rows sit at {value}", stages=("drafter.positions",), values=PLACES, fix=PLACE_FIX)(
    placed
)
chain("chain-slots", "chain rows are written at {value}", stages=("drafter.slots",), values=PLACES, fix=PLACE_FIX)(
    partial(placed, of="slots")
)
chain(
    "chain-slots-off",
    "slots of chain rows are {value} (a number: so many off)",
    stages=("drafter.slots",),
    values=(1, -1, "flat", "all the first one's", "restarted"),
    fix=PLACE_FIX,
)(partial(moved, rows="behind", of="slots"))


@chain(
    "chain-positions-in-pass",
    "positions restart in every pass of a verify round",
    stages=("drafter.positions",),
    fix="positions of a pass start behind the cached rows",
)
def _(loop: Loop, value: None) -> Mutation:
    """The committed rows count from 0, each chain row is 0."""

    def places(inner: Callable[..., Tensor], committed: int, behind: int) -> Tensor:
        true = inner(committed, behind)
        number = torch.arange(len(true))
        return number * (number < committed) if loop.state.draft_length else true

    return loop.positions.around(places)


STARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "the one before the last": lambda stream: stream[-2:][:1],
    "the first": lambda stream: stream[:1],
}
"""Of a round's first pass [n, H]; one of a single row has no other."""


@contextmanager
def begun(loop: Loop, value: tuple[str, str]) -> Iterator[None]:
    """Another row drafts first, and is recycled first: `value` = (row, what is taken from it)."""
    (row, taken), chained = value, [False]

    def other(inner: Callable[..., Tensor], stream: Tensor, *committed: int) -> Tensor:
        return inner(stream, *committed) if chained[0] else STARTS[row](stream)

    def recycle(inner: Callable[..., Tensor], stream: Tensor) -> Tensor:
        first, hidden = not chained[0], inner(stream)
        chained[0] = True
        if taken == "its draft":
            return hidden
        if hidden is None:
            raise NotApplicable("a row takes no stream")
        return STARTS[row](stream) if first else hidden

    def draft(inner: Callable[[], Tensor]) -> Tensor:
        chained[0] = False
        return inner()

    with loop.predicting.around(other), loop.recycled.around(recycle), loop.draft.around(draft):
        yield


chain(
    "chain-start",
    "the chain begins at another committed row than the last, (row, what is taken): {value}",
    stages=("drafter.fc_out", "drafter.pre_head_hidden"),
    values=[(row, taken) for taken in ("its draft and its stream", "its draft") for row in STARTS],
    fix=START_FIX,
)(begun)

sight = seeing.part(drafters=STEPS)
sight("chain-committed-hidden", "a drafter row sees: in the chain, no committed row of its round")(
    lambda seen, keys, rows, slots, start, committed: (
        seen & ((rows < committed) | (keys < start) | (keys >= start + committed))
    )
)
sight("chain-alone", "a drafter row sees: in the chain, chain rows only")(
    lambda seen, keys, rows, slots, start, committed: seen & ((rows < committed) | (keys >= start + committed))
)
sight("chain-blind", "a drafter row sees: in the chain, rows of its round only")(
    lambda seen, keys, rows, slots, start, committed: seen & ((rows < committed) | (keys >= start))
)
sight("chain-not-itself", "a drafter row sees: in the chain, not itself")(
    lambda seen, keys, rows, slots, start, committed: seen & ((rows < committed) | (keys != slots))
)
sight("chain-last-committed-hidden", "a drafter row sees: in the chain, not the last committed row")(
    lambda seen, keys, rows, slots, start, committed: seen & ((rows < committed) | (keys != start + committed - 1))
)
sight("chain-first-sight", "a drafter row sees: in the chain, no further than its first row")(
    lambda seen, keys, rows, slots, start, committed: seen & (keys <= start + committed)
)
sight("chain-committed-sight", "a drafter row sees: in the chain, no further than the last committed row")(
    lambda seen, keys, rows, slots, start, committed: seen & (keys < start + committed)
)
