"""Other embeddings, heads and logits, on either side."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from parity.references.hypotheses.caches import FORMS as STORED
from parity.references.hypotheses.catalogue import FACTOR, Family, Fit, Mutation
from parity.references.hypotheses.inference import Ratio
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import NotApplicable, changed, drafts_ids, head_of, reweighted, weighted
from parity.references.hypotheses.residuals import LATER, LOGITS
from parity.references.points import foreign

weights = Family(by_side=True, fit=FACTOR)


def _embedding(loop: Loop, side: str) -> Tensor:
    body = loop.target.model.model if side == "target" else weighted(loop)
    weight: Tensor = body.embed_tokens.weight
    return weight


MOVED: dict[str, Callable[[Tensor], Tensor]] = {
    "one row late": lambda w: w.roll(1, 0),
    "one row early": lambda w: w.roll(-1, 0),
    "zero": lambda w: torch.zeros_like(w),
}


def embedding(loop: Loop, value: float | str, side: str) -> Mutation:
    """Other embeddings: scaled, moved by a row, zero, or the other model's."""
    weight = _embedding(loop, side)
    if value == "the other model's":
        return reweighted(weight, _embedding(loop, "drafter" if side == "target" else "target").data)
    if value in PLACEHOLDERS:
        return changed(weight, _placeholder(loop, PLACEHOLDERS[str(value)]))
    if value in BEYOND:
        first = len(drafts_ids(loop))
        return changed(weight, lambda w: torch.cat((w[:first], BEYOND[str(value)](w[:first]).expand_as(w[first:]))))
    if value in SHARDS:
        return changed(weight, SHARDS[str(value)])
    if value == "times sqrt(H)":
        return changed(weight, lambda w: w * w.shape[1] ** 0.5)
    return changed(weight, MOVED[value] if isinstance(value, str) else lambda w: w * value)


def _sharded(weight: Tensor, shards: int, shard: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    """The table [V, H] with one of so many shards of its rows changed."""
    parts = list(weight.chunk(shards))
    parts[shard] = change(parts[shard])
    return torch.cat(parts)


SHARDS: dict[str, Callable[[Tensor], Tensor]] = {
    f"right but for shard {shard} of {shards}, {how}": partial(_sharded, shards=shards, shard=shard, change=change)
    for shards in (2, 4, 8)
    for shard in range(shards)
    for how, change in MOVED.items()
}
"""Vocabularies that are cut for ranks, or loaded in parts."""

BEYOND: dict[str, Callable[[Tensor], Tensor]] = {
    "those of as many ids as it has draft ids, the last one's behind them": lambda w: w[-1:],
    "those of as many ids as it has draft ids, zeros behind them": lambda w: torch.zeros_like(w[-1:]),
}
PLACEHOLDERS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "right but for the placeholder's, the mean of all others": lambda w, own: (w.sum(0) - w[own]) / (len(w) - 1),
    "right but for the placeholder's, zeros": lambda w, own: torch.zeros_like(w[own]),
}


def _placeholder(loop: Loop, change: Callable[[Tensor, int], Tensor]) -> Callable[[Tensor], Tensor]:
    """Another row for the token of masked rows."""
    number = getattr(loop.drafter.config, "placeholder_id", None)
    if number is None:
        raise NotApplicable("no row is masked")

    def of(weight: Tensor) -> Tensor:
        other = weight.clone()
        other[number] = change(weight, number)
        return other

    return of


EMBEDDED = ("times sqrt(H)", *MOVED, "the other model's")
weights.both(
    {"target": "load-embed", "drafter": "load-embed-random"},
    "its embeddings are {value} (a number: times as large)",
    stages={"target": ("target.embed",), "drafter": ("drafter.layers.0.attn_out",)},
    values={"target": EMBEDDED, "drafter": (*EMBEDDED[::-1], *BEYOND, *PLACEHOLDERS, *SHARDS)},
    infer={"target": Ratio("target.embed"), "drafter": None},
    fix="loading embed_tokens: each model has its own",
    seen={"target": (), "drafter": ("TorchSpec #38", "vLLM #27737")},
)(embedding)


def head(loop: Loop, value: float | str, side: str) -> Mutation:
    """Other head weights."""
    rows = slice(None) if side == "target" else drafts_ids(loop)
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "tied to its embedding": lambda w: _embedding(loop, side).data[rows],
        "the target's": lambda w: head_of(loop, "target").weight.data[rows],
        "the target's first rows": lambda w: head_of(loop, "target").weight.data[: len(w)],
        **MOVED,
    }
    return changed(head_of(loop, side).weight, known[value] if isinstance(value, str) else lambda w: w * value)


TIED = ("tied to its embedding", *MOVED)
weights.both(
    "load-tied-head",
    "its head is {value} (a number: times as large)",
    stages=LOGITS,
    values={"target": TIED, "drafter": (*TIED, "the target's", "the target's first rows")},
    infer={"target": Ratio("target.logits"), "drafter": Ratio("drafter.logits")},
    fix="loading lm_head: untied, and each model has its own",
    seen=("SpecForge #140", "SGLang #27908"),
    cost=LATER,
)(head)

NARROW = {form: low for form, low in STORED.items() if form != "bfloat16"}
"""Formats that a loader, or one path of a kernel, keeps a head in; a checkpoint's own is bfloat16."""


kept = Family(by_side=True, stages=LOGITS, values=NARROW, cost=LATER)


@kept.both(
    "load-head-narrow",
    "its head's weight is kept in {value}",
    fix="the head's weight in the checkpoint's dtype, in every path that reads it",
    seen=("tokenspeed #904", "TRT-LLM #9208"),
)
def _(loop: Loop, form: str, side: str) -> Mutation:
    return changed(head_of(loop, side).weight, NARROW[form])


def _in_steps(table: Tensor) -> Tensor:
    step = table.abs().max() / 127
    return (table / step).round() * step


TABLES = NARROW | {"int8 with one scale": _in_steps}


@kept.both(
    "load-embed-narrow",
    "its embeddings are kept in {value}",
    stages={"target": ("target.embed",), "drafter": ("drafter.layers.0.attn_out",)},
    values=TABLES,
    cost=1,
    fix="the embeddings in the checkpoint's dtype",
)
def _(loop: Loop, form: str, side: str) -> Mutation:
    return changed(_embedding(loop, side), TABLES[form])


logits = Family(by_side=True, stages=LOGITS, cost=LATER)


@logits.both(
    "logits-capped",
    "logits are soft-capped, c tanh(x / c) with c = {value:.4g}",
    values=(30.0, 50.0),
    fit=Fit(1.0, 200.0, clean=None, log=True),
    fix="these models do not cap their logits",
)
def _(loop: Loop, limit: float, side: str) -> Mutation:
    return foreign(head_of(loop, side), "forward").around(lambda inner, x: limit * torch.tanh(inner(x) / limit))


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "their log softmax": lambda x: x.log_softmax(-1),
    "their softmax": lambda x: x.softmax(-1),
    "less the largest": lambda x: x - x.max(-1, keepdim=True).values,
    "less their mean": lambda x: x - x.mean(-1, keepdim=True),
}


@logits.both("logits-form", "logits are handed over as {value}", values=FORMS, fix="logits as the head gives them")
def _(loop: Loop, form: str, side: str) -> Mutation:
    return foreign(head_of(loop, side), "forward").around(lambda inner, x: FORMS[form](inner(x)))
