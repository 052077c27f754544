"""What tensor-parallel ranks hold gone wrong: shards of weights in other places, parts of caches, choices of one shard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from parity.references.mutations import NotApplicable, changed, layers_of, reweighted, together, wrapped
from parity.references.mutations.caches import changed_behind_rounds


def share_of(size: int, ranks: int, what: str) -> int:
    """How many of `size` units each rank gets.

    Raises:
        NotApplicable: they cannot be shared out evenly.
    """
    if ranks < 2 or size % ranks:
        raise NotApplicable(f"{ranks} ranks cannot share out {size} {what}")
    return size // ranks


def dealt(size: int, ranks: int, how: str, what: str) -> torch.Tensor:
    """Which of `size` units lies in each place where every rank should have its own run of neighbours."""
    share, places = share_of(size, ranks, what), torch.arange(size)
    return {
        "the next rank's": places.roll(-share),
        "the previous rank's": places.roll(share),
        "the first rank's": places % share,
        "in turn": places.view(share, ranks).T.flatten(),
    }[how]


def reshard(loop: Any, ranks: int, side: str, part: str, how: str) -> AbstractContextManager:
    """The weights of `part` shared out another way: q, kv, o, sinks, down (its rows), head (its columns)."""

    def contexts() -> Iterator[AbstractContextManager]:
        for tensor, axis, units, what in _shared_out(loop, side, part):
            order = dealt(units, ranks, how, what)
            take = lambda w, axis=axis, units=units, order=order: (  # noqa: E731
                w.unflatten(axis, (units, -1)).index_select(axis, order).flatten(axis, axis + 1)
            )
            yield changed(tensor, take)

    return together(list(contexts()))


def _shared_out(loop: Any, side: str, part: str) -> Iterator[tuple[torch.Tensor, int, int, str]]:
    """(tensor, axis, units of this axis, what a unit is) of everything that `part` shares out."""
    if part == "head":
        weight = (loop.target.model if side == "target" else loop.drafter).lm_head.weight
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
                for tensor in filter(lambda one: one is not None, (projection.weight, projection.bias)):
                    yield tensor, 0, heads if letter == "q" else kv_heads, "heads"


def head_counts(loop: Any, side: str) -> tuple[int, int]:
    """N and G of a side."""
    if side == "target":
        return loop.target.config.num_attention_heads, loop.target.config.num_key_value_heads
    return loop.drafter.config.num_heads, loop.drafter.config.num_kv_heads


def gate_up_split(loop: Any, value: tuple[int, str], side: str, biases: bool = True) -> AbstractContextManager:
    """gate_up [.., 2I] shared out whole, a rank taking the first half of what it gets for gate and the other for up.

    `value` is (ranks, how): a "run" of [gate, up], or columns "in turn" of the interleaved ones.
    """
    ranks, how = value

    def mixed(gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        share = share_of(gate.shape[-1], ranks, "intermediate columns")
        if how == "run":
            runs = torch.cat((gate, up), -1).unflatten(-1, (ranks, 2, share))
            return runs[..., 0, :].flatten(-2), runs[..., 1, :].flatten(-2)
        turns = torch.stack((gate, up), -1).flatten(-2).unflatten(-1, (2 * share, ranks)).transpose(-1, -2)
        return turns[..., ::2].flatten(-2), turns[..., 1::2].flatten(-2)

    def fused(w: torch.Tensor) -> torch.Tensor:
        return torch.stack(mixed(w[..., ::2], w[..., 1::2]), -1).flatten(-2)

    if side == "target":
        held = [layer.mlp.experts for _, layer in layers_of(loop, side)]
        parts = ("gate_up_proj", "gate_up_proj_bias") if biases else ("gate_up_proj",)
        return together(changed(getattr(experts, part), fused) for experts in held for part in parts)
    return together([context for _, layer in layers_of(loop, side) for context in _apart(layer.mlp, mixed)])


def _apart(mlp: Any, mixed: Any) -> list[AbstractContextManager]:
    weights = mlp.gate_proj.weight, mlp.up_proj.weight
    found = mixed(*(weight.data.T for weight in weights))
    return [reweighted(weight, other.T) for weight, other in zip(weights, found, strict=True)]


def rolled_back(loop: Any, value: tuple[int, int], side: str, how: str) -> AbstractContextManager:
    """One rank's kv heads, `value` = (rank, ranks), lose their last committed row (`how`: far), or all rows (reset)."""
    rank, ranks = value
    kv_heads = head_counts(loop, side)[1]
    share = share_of(kv_heads, ranks, "kv heads")
    theirs = (torch.arange(kv_heads) // share == rank)[:, None]

    def lose(x: torch.Tensor) -> torch.Tensor:
        gone = torch.arange(len(x))[:, None, None] >= (len(x) - 1 if how == "far" else 0)
        return x * ~(gone & theirs)

    return changed_behind_rounds(loop, side, lambda k, v, rejected: (lose(k), lose(v)))


def embedded(loop: Any, value: tuple[int, int]) -> AbstractContextManager:
    """One rank's rows of the target's embedding alone, `value` = (rank, ranks): ids of the others are zero."""
    rank, ranks = value
    weight = loop.target.model.model.embed_tokens.weight
    share = share_of(len(weight), ranks, "ids")
    return changed(weight, lambda w: w * (torch.arange(len(w)) // share == rank)[:, None])


def chosen_by(loop: Any, ranks: int, of: str, how: str) -> AbstractContextManager:
    """An argmax over vocabulary shards, `of` target, drafter or both: the first one alone, or an id without its offset."""
    sizes = {"target": loop.target.config.vocab_size, "drafter": loop.drafter.config.draft_vocab_size}
    shares = {side: share_of(size, ranks, "ids") for side, size in sizes.items() if of in ("both", side)}
    drafting = [False]

    def draft(inner):
        drafting[:] = [True]
        try:
            return inner()
        finally:
            drafting[:] = [False]

    def around(inner, logits):
        share = shares.get("drafter" if drafting[0] else "target")
        if share is None:
            return inner(logits)
        return inner(logits[..., :share]) if how == "first" else inner(logits) % share

    return together([wrapped(loop, "_draft", draft), wrapped(loop, "_greedy", around)])
