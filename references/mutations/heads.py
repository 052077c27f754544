"""Other embeddings, heads, vocabularies and choices."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from parity.references.mutations import NotApplicable, changed, reweighted, rows_from, together, wrapped


def _embedding(loop: Any, side: str) -> torch.Tensor:
    return (loop.target.model.model if side == "target" else loop.drafter).embed_tokens.weight


def _head(loop: Any, side: str) -> torch.nn.Linear:
    return loop.target.model.lm_head if side == "target" else loop.drafter.lm_head


def embedding(loop: Any, value: float | str, side: str) -> AbstractContextManager:
    """Other embeddings: scaled, moved by a row, zero, or the other model's."""
    weight = _embedding(loop, side)
    if value == "the other model's":
        return reweighted(weight, _embedding(loop, "drafter" if side == "target" else "target").data)
    change = {
        "times sqrt(H)": lambda w: w * w.shape[1] ** 0.5,
        "one row late": lambda w: w.roll(1, 0),
        "one row early": lambda w: w.roll(-1, 0),
        "zero": torch.zeros_like,
    }.get(value, lambda w: w * value)
    return changed(weight, change)


def head(loop: Any, value: float | str, side: str) -> AbstractContextManager:
    """Other head weights."""
    drafted = loop.drafter.to_target(torch.arange(loop.drafter.config.draft_vocab_size))
    rows = slice(None) if side == "target" else drafted
    change = {
        "tied to its embedding": lambda w: _embedding(loop, side).data[rows],
        "the target's": lambda w: _head(loop, "target").weight.data[rows],
        "the target's first rows": lambda w: _head(loop, "target").weight.data[: len(w)],
        "one row late": lambda w: w.roll(1, 0),
        "one row early": lambda w: w.roll(-1, 0),
        "zero": torch.zeros_like,
    }.get(value, lambda w: w * value)
    return changed(_head(loop, side).weight, change)


def capped(loop: Any, limit: float, side: str) -> AbstractContextManager:
    """Logits soft-capped as Gemma's are: limit * tanh(logits / limit)."""
    return wrapped(_head(loop, side), "forward", lambda inner, x: limit * torch.tanh(inner(x) / limit))


def formed(loop: Any, form: str, side: str) -> AbstractContextManager:
    """Logits handed over in another form."""
    change = {
        "their log softmax": lambda x: x.log_softmax(-1),
        "their softmax": lambda x: x.softmax(-1),
        "less the largest": lambda x: x - x.max(-1, keepdim=True).values,
        "less their mean": lambda x: x - x.mean(-1, keepdim=True),
    }[form]
    return wrapped(_head(loop, side), "forward", lambda inner, x: change(inner(x)))


def vocabulary(loop: Any, value: None, how: str) -> AbstractContextManager:
    """Draft ids taken to the target's vocabulary another way."""
    d2t, most = loop.drafter.d2t, loop.drafter.config.vocab_size - 1
    if not d2t.any():
        raise NotApplicable("draft and target vocabulary are the same")
    to_target = {
        "absolute": lambda inner, ids: d2t[ids],
        "missing": lambda inner, ids: ids,
        "subtracted": lambda inner, ids: ids - d2t[ids],
        "added twice": lambda inner, ids: inner(ids) + d2t[ids],
        "plus one": lambda inner, ids: inner(ids) + 1,
        "of the row before": lambda inner, ids: ids + d2t[(ids - 1).clamp(0)],
        "of the row behind": lambda inner, ids: ids + d2t[(ids + 1).clamp(max=len(d2t) - 1)],
    }[how]
    return wrapped(loop.drafter, "to_target", lambda inner, ids: to_target(inner, ids).clamp(0, most))


def choice(loop: Any, how: str) -> AbstractContextManager:
    """Another argmax, of target and drafter alike."""

    def last(inner, logits):
        return logits.shape[-1] - 1 - inner(logits.flip(-1))

    around = {
        "of bfloat16 logits": lambda inner, logits: inner(logits.bfloat16().float()),
        "the last of equal ones": last,
        "the last of equal bfloat16 ones": lambda inner, logits: last(inner, logits.bfloat16().float()),
        "second best": lambda inner, logits: logits.topk(2).indices[..., 1],
        "smallest": lambda inner, logits: inner(-logits),
    }[how]
    return wrapped(loop, "_greedy", around)


def rows(loop: Any, delta: int, rounds_only: bool) -> AbstractContextManager:
    """Each target row with the logits `delta` rows later."""

    def forward(inner, ids):
        logits = inner(ids)
        if rounds_only and loop.length == 0:
            return logits
        return logits[torch.arange(len(logits)).add(delta).clamp(0, len(logits) - 1)]

    return wrapped(loop.target, "forward", forward)


def draft_rows(loop: Any, delta: int) -> AbstractContextManager:
    """Drafts read `delta` rows later than they should; what stands outside the pass may be anything."""
    return wrapped(loop, "_predicting", lambda inner, rows, committed: rows_from(rows, committed - 1 + delta, loop.k))


def verified_without_first(loop: Any, value: None) -> AbstractContextManager:
    """Verify runs the drafts without the last emitted token in front; what stands on its last row may be anything."""

    def forward(inner, ids):
        return inner(ids if loop.length == 0 else torch.cat((ids[1:], ids[-1:])))

    def reset(inner, tap):
        def embedded(stage, value):
            verifying = stage == "target.embed" and loop.length > 0
            return tap(stage, rows_from(value[:-1], 0, len(value)) if verifying else value)

        return inner(embedded)

    return together((wrapped(loop.target, "forward", forward), wrapped(loop.target, "reset", reset)))


def first_rows(loop: Any, value: None) -> AbstractContextManager:
    """Drafts read from the pass' first K rows."""
    return wrapped(loop, "_predicting", lambda inner, rows, committed: rows[: loop.k])


def drafts_reversed(loop: Any, value: None) -> AbstractContextManager:
    """Draft rows from the last to the first."""
    return wrapped(loop, "_predicting", lambda inner, rows, committed: inner(rows, committed).flip(0))
