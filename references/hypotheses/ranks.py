"""What tensor-parallel ranks hold gone wrong: shards of weights in other places, parts of caches, choices of one shard.

Everything is shared out as Megatron does it: q, k, v, gate and up by output columns, heads whole; o and down by input
rows, their partial sums added up over the ranks and the bias added once; head and embedding by ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from parity.references.hypotheses.caches import KV, holding_behind_rounds
from parity.references.hypotheses.catalogue import EVERY, MODELS, Family, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import (
    Layer,
    NotApplicable,
    changed,
    head_counts,
    head_of,
    layers_of,
    reweighted,
    together,
)
from parity.references.hypotheses.residuals import LATER, LOGITS

SPLITS = (2, 4, 8)
ONE_OF = ((0, 2), (1, 2), (0, 4), (1, 4), (2, 4), (3, 4), (0, 8), (7, 8))
"""(rank, ranks)."""

SHARD_FIX = "which rows and columns of the checkpoint's weight a rank loads"
SHARDS = ("class of TTrace's shard faults",)


def share_of(size: int, ranks: int, what: str) -> int:
    """How many of `size` units each rank gets.

    Raises:
        NotApplicable: they cannot be shared out evenly.
    """
    if ranks < 2 or size % ranks:
        raise NotApplicable(f"{ranks} ranks cannot share out {size} {what}")
    return size // ranks


DEALS: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "the next rank's": lambda places, share, ranks: places.roll(-share),
    "the previous rank's": lambda places, share, ranks: places.roll(share),
    "the first rank's": lambda places, share, ranks: places % share,
    "in turn": lambda places, share, ranks: places.view(share, ranks).T.flatten(),
}


def dealt(size: int, ranks: int, how: str, what: str) -> Tensor:
    """Which of `size` units lies in each place where every rank should have its own run of neighbours."""
    return DEALS[how](torch.arange(size), share_of(size, ranks, what), ranks)


def reshard(loop: Loop, ranks: int, side: str, part: str, how: str) -> Mutation:
    """The weights of `part` shared out another way: q, kv, o, sinks, down (its rows), head (its columns)."""

    def contexts() -> Iterator[Mutation]:
        for tensor, axis, units, what in _shared_out(loop, side, part):
            yield changed(tensor, partial(_taken, axis=axis, units=units, order=dealt(units, ranks, how, what)))

    return together(contexts())


def _taken(w: Tensor, axis: int, units: int, order: Tensor) -> Tensor:
    parts: Tensor = w.unflatten(axis, (units, -1))
    return parts.index_select(axis, order).flatten(axis, axis + 1)


def _shared_out(loop: Loop, side: str, part: str) -> Iterator[tuple[Tensor, int, int, str]]:
    """(tensor, axis, units of this axis, what a unit is) of everything that `part` shares out."""
    if part == "head":
        weight = head_of(loop, side).weight
        yield weight, 0, len(weight), "ids"
        return
    heads, kv_heads = head_counts(loop, side)
    for _, layer in layers_of(loop, side):
        attention = layer.self_attn
        if part == "down":
            weight = layer.mlp.experts.down_proj if side == "target" else layer.mlp.down_proj.weight
            yield weight, 1, weight.shape[1], "intermediate columns"
        elif part == "o":
            yield attention.o_proj.weight, 1, heads, "heads"
        elif part == "sinks":
            yield attention.sinks, 0, heads, "heads"
        else:
            for letter in part:
                projection = getattr(attention, f"{letter}_proj")
                held = [tensor for tensor in (projection.weight, projection.bias) if tensor is not None]
                yield from ((tensor, 0, heads if letter == "q" else kv_heads, "heads") for tensor in held)


shards = Family(fix=SHARD_FIX, values=SPLITS)
for side, part, id, what, stage in (
    ("target", "q", "q-heads", "query heads", "q"),
    ("target", "kv", "kv-heads", "kv heads", "k"),
    ("target", "o", "o-rows", "rows of o_proj", "attn_out"),
    ("target", "sinks", "sinks", "sinks", "attn_out"),
    ("target", "down", "down-rows", "rows of down_proj", "ffn_out"),
    ("target", "head", "head", "columns of the head", "logits"),
    ("drafter", "q", "q-heads", "query heads", "attn_out"),
    ("drafter", "kv", "kv-heads", "kv heads", "attn_out"),
    ("drafter", "o", "o-rows", "rows of o_proj", "attn_out"),
    ("drafter", "down", "down-rows", "rows of down_proj", "ffn_out"),
    ("drafter", "head", "head", "columns of the head", "logits"),
):
    for end, how, says in (
        ("exchanged", "the next rank's", "each of {value} ranks holds the next one's"),
        ("exchanged-back", "the previous rank's", "each of {value} ranks holds the previous one's"),
        ("first", "the first rank's", "each of {value} ranks holds the first one's"),
        ("strided", "in turn", "{value} ranks take them in turn, not in runs"),
    ):
        if (part, end) == ("sinks", "strided"):
            continue  # attn-sinks-interleaved and attn-sinks-grouped
        shards.both(
            f"tp-{id}-{end}",
            f"{what}: {says}",
            sides=(side,),
            stages=LOGITS if stage == "logits" else (f"{{side}}.layers.*.{stage}",),
            values=SPLITS if end != "exchanged-back" else SPLITS[1:],  # of two ranks the next one is the previous one
            seen=SHARDS if end == "exchanged" and part != "sinks" else (),  # attn-sinks-rolled says it plainer
            cost=LATER if stage == "logits" else 1,
        )(partial(reshard, part=part, how=how))


def gate_up_split(loop: Loop, value: tuple[int, str], side: str, biases: bool = True) -> Mutation:
    """gate_up [.., 2I] shared out whole, a rank taking the first half of what it gets for gate and the other for up.

    `value` is (ranks, how): a "run" of [gate, up], or columns "in turn" of the interleaved ones.
    """
    ranks, how = value

    def mixed(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        share = share_of(gate.shape[-1], ranks, "intermediate columns")
        if how == "run":
            runs = torch.cat((gate, up), -1).unflatten(-1, (ranks, 2, share))
            return runs[..., 0, :].flatten(-2), runs[..., 1, :].flatten(-2)
        turns = torch.stack((gate, up), -1).flatten(-2).unflatten(-1, (2 * share, ranks)).transpose(-1, -2)
        return turns[..., ::2].flatten(-2), turns[..., 1::2].flatten(-2)

    def fused(w: Tensor) -> Tensor:
        return torch.stack(mixed(w[..., ::2], w[..., 1::2]), -1).flatten(-2)

    mlps = [layer.mlp for _, layer in layers_of(loop, side)]
    if side == "target":
        parts = ("gate_up_proj", "gate_up_proj_bias") if biases else ("gate_up_proj",)
        return together(changed(getattr(mlp.experts, part), fused) for mlp in mlps for part in parts)
    return together(context for mlp in mlps for context in _apart(mlp, mixed))


def _apart(mlp: Layer, mixed: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> list[Mutation]:
    gate, up = mlp.gate_proj.weight, mlp.up_proj.weight
    other_gate, other_up = mixed(gate.data.T, up.data.T)
    return [reweighted(gate, other_gate.T), reweighted(up, other_up.T)]


gate_up = Family(
    stages=("{side}.layers.*.ffn_out",),
    values=[(many, how) for how in ("run", "in turn") for many in SPLITS],
    fix="gate and up are each split over the ranks on their own",
    seen=("loaders of fused gate_up projections",),
)
RUN = "gate_up is shared out whole, each rank halves what it gets, {}: (ranks, columns in a run or in turn) {{value}}"
gate_up.both("tp-gate-up-run", RUN.format("the biases with it"), sides=("target",))(gate_up_split)
gate_up.both("tp-gate-up-run-weights", RUN.format("the biases right"), sides=("target",))(
    partial(gate_up_split, biases=False)
)
gate_up.both("tp-gate-up-run", RUN.format("gate and up fused"), sides=("drafter",))(gate_up_split)

choice = Family(values=SPLITS, fix="the all-gather of the shards' best values, with the offsets of their ids")


@choice(
    "tp-embed-not-reduced",
    "target: an embedding is looked up in one rank's ids alone: (rank, ranks) {value}",
    stages=("target.embed",),
    values=ONE_OF,
    fix="the all-reduce behind a vocabulary-parallel embedding",
)
def _(loop: Loop, value: tuple[int, int]) -> Mutation:
    rank, ranks = value
    weight = loop.target.model.model.embed_tokens.weight
    share = share_of(len(weight), ranks, "ids")
    return changed(weight, lambda w: w * (torch.arange(len(w)) // share == rank)[:, None])


OFFSETS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "none": lambda shard, ranks: 0 * shard,
    "last first": lambda shard, ranks: ranks - 1 - shard,
    "next": lambda shard, ranks: (shard + 1) % ranks,
}
"""The shard whose offset an id gets, of the one that it is from."""


def chosen_by(loop: Loop, ranks: int, of: tuple[str, ...], how: str) -> Mutation:
    """An argmax over vocabulary shards, `of` these sides: the first one alone, or an id with another offset."""
    shares = {side: share_of(len(head_of(loop, side).weight), ranks, "ids") for side in of}
    drafting = [False]

    def draft(inner: Callable[[], Tensor]) -> Tensor:
        drafting[:] = [True]
        try:
            return inner()
        finally:
            drafting[:] = [False]

    def around(inner: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
        share = shares.get("drafter" if drafting[0] else "target")
        if share is None:
            return inner(logits)
        if how == "first":
            return inner(logits[..., :share])
        ids = inner(logits)
        return ids % share + OFFSETS[how](ids // share, ranks) * share

    return together((loop.draft.around(draft), loop.greedy.around(around)))


TOKENS, DRAFTS, MEGATRON = ("target.tokens", "verify.tokens"), ("drafter.draft_tokens",), ("vocabulary-parallel heads",)
for name, who, of, stages, seen in (
    ("tp", "target", ("target",), TOKENS, MEGATRON),
    ("tp-draft", "drafter", ("drafter",), DRAFTS, MEGATRON),
    ("tp-both", "target and drafter", ("target", "drafter"), TOKENS + DRAFTS, ()),
):
    for end, how, says in (
        ("argmax-first-shard", "first", "sees the first of {value} vocabulary shards alone"),
        ("argmax-no-offset", "none", "over {value} vocabulary shards lacks the shard's offset"),
        ("argmax-reversed", "last first", "over {value} vocabulary shards gathers them with the last one first"),
        ("argmax-next-offset", "next", "over {value} vocabulary shards adds the next shard's offset"),
    ):
        about = EVERY if of == ("target",) else MODELS
        choice(f"{name}-{end}", f"{who}: the argmax {says}", stages=stages, seen=seen, drafters=about)(
            partial(chosen_by, of=of, how=how)
        )


def rolled_back(loop: Loop, value: tuple[int, int], side: str, how: str) -> Mutation:
    """One rank's kv heads, `value` = (rank, ranks), lose their last committed row (`how`: far), or all rows (reset)."""
    rank, ranks = value
    kv_heads = head_counts(loop, side)[1]
    share = share_of(kv_heads, ranks, "kv heads")
    theirs = (torch.arange(kv_heads) // share == rank)[:, None]

    def lose(x: Tensor) -> Tensor:
        gone = torch.arange(len(x))[:, None, None] >= (len(x) - 1 if how == "far" else 0)
        return x * ~(gone & theirs)

    return holding_behind_rounds(loop, side, lambda k, v, rejected: (lose(k), lose(v)))


rollback = Family(
    by_side=True, stages=KV, values=ONE_OF, fix="every rank rolls its caches back to the same length", cost=2
)
ONE_RANK = "one rank's part of the cache {} in a rollback: (rank, ranks) {{value}}"
rollback.both("tp-rollback-one-rank", ONE_RANK.format("loses its last committed row"), seen=("class of mlxcel #994",))(
    partial(rolled_back, how="far")
)
rollback.both("tp-rollback-one-rank-reset", ONE_RANK.format("is cleared"))(partial(rolled_back, how="reset"))
