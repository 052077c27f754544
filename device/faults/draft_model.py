"""Faults of a small draft model: what it is fed, what stays in its cache, and whose numbers it computes with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from parity.device.draft_model import DraftModel
from parity.device.faults.chain import blind_to_itself
from parity.device.faults.planting import ALONE, Family, during, instead
from parity.device.pipeline import Pipeline

IDS, POSITIONS, FIRST = "drafter.input_ids", "drafter.positions", "kv.drafter.0.k"
HIDDEN, TOKENS, ATTENTION = "drafter.pre_head_hidden", "drafter.draft_tokens", "drafter.layers.0.attn_out"
CACHE = ("kv.drafter.*", "drafter.*")
fault = Family("draft model", same_text=True, round=None, drafters=ALONE)


@fault(
    "draft-rejected-kept",
    "rejected rows' keys and values stay in the cache and count",
    FIRST,
    sites=CACHE,
    gate="rollback",
    seen="MLPerf EDU scaffold",
)
def _(pipeline: Pipeline) -> None:
    _kept(pipeline, lambda clean, before, drafts, emitted: before + len(drafts))


@fault(
    "draft-rejected-contents",
    "the cache keeps the first rejected row in the place of the last accepted one",
    FIRST,
    sites=("kv.drafter.*",),
    gate="rollback",
    seen="class of mlx-lm #1109",
)
def _(pipeline: Pipeline) -> None:
    drafter = _drafter(pipeline)

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def rollback(length: int) -> None:
            rejected = [tuple(one[:, length : length + 1] for one in pair) for pair in drafter.caches]
            clean(length)
            for pair, rows in zip(drafter.caches, rejected, strict=True):
                for one, row in zip(pair, rows, strict=True):
                    one[:, length - 1 : length] = row

        return rollback

    instead(drafter, "rollback", make)


@fault(
    "draft-last-never-fed",
    "after a full acceptance the last draft's row is missing from the cache, and counts",
    FIRST,
    sites=CACHE,
    gate="rollback",
    seen="class of vLLM's draft model",
)
def _(pipeline: Pipeline) -> None:
    _kept(pipeline, lambda clean, before, drafts, emitted: before + len(emitted))


@fault(
    "draft-last-skipped",
    "of two tokens to feed the bonus alone is fed, one place early",
    IDS,
    sites=CACHE,
    seen="loops of one token",
)
def _(pipeline: Pipeline) -> None:
    instead(_drafter(pipeline), "due", lambda clean: lambda text, emitted: clean(text, emitted)[-1:])


@fault(
    "draft-accepted-dropped",
    "accepted rows are dropped and run over again",
    FIRST,
    round=1,
    sites=CACHE,
    seen="EAGLE's loop",
)
def _(pipeline: Pipeline) -> None:
    _kept(pipeline, lambda clean, before, drafts, emitted: before)


@fault(
    "draft-one-row-short", "the last accepted row is rolled back too", FIRST, round=1, sites=CACHE, seen="mlxcel #994"
)
def _(pipeline: Pipeline) -> None:
    _kept(pipeline, lambda clean, *rest: clean(*rest) - 1)


@fault(
    "draft-prompt-shifted",
    "the prompt is fed from its second token on",
    IDS,
    round=0,
    sites=("drafter.*", "kv.drafter.*"),
    seen="EAGLE's loop",
)
def _(pipeline: Pipeline) -> None:
    _drafter(pipeline).ahead = 1


@fault(
    "draft-prompt-end-unfed", "the prompt's last token is fed as another", IDS, round=0, seen="off by one at prefill"
)
def _(pipeline: Pipeline) -> None:
    _prompt(pipeline, lambda ids: np.concatenate([ids[:-1], ids[-2:-1]]))


@fault(
    "draft-committed-late",
    "a round's first rows one position further on",
    POSITIONS,
    round=1,
    seen="class of SGLang #25015",
)
def _(pipeline: Pipeline) -> None:
    drafter = _drafter(pipeline)

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def layout(ids: np.ndarray, done: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            ids, positions, slots = clean(ids, done)
            return ids, positions + (not done and drafter.length > 0), slots

        return layout

    instead(drafter, "layout", make)


@fault(
    "draft-first-row-drafts",
    "the first row of a pass drafts, not the last",
    HIDDEN,
    sites=(HIDDEN,),
    seen="class of NKIPy PR 63",
)
def _(pipeline: Pipeline) -> None:
    instead(_drafter(pipeline), "choose", lambda clean: lambda x, committed, *rest: clean(x, 1, *rest))


@fault(
    "draft-target-rope",
    "turned by the target's RoPE",
    ATTENTION,
    round=0,
    sites=("kv.drafter.*.k", "drafter.layers.*.attn_out"),
    seen="shared tables",
)
def _(pipeline: Pipeline) -> None:
    pipeline.drafter.turn(pipeline.target.rope)


@fault("draft-norm-last-missing", "the final norm left out", HIDDEN, round=1, sites=(HIDDEN,), seen="ports of Llama")
def _(pipeline: Pipeline) -> None:
    during(pipeline, "drafter:llama_norm", lambda clean: lambda x, weight, eps: x)


@fault("draft-runner-up", "every draft is the second best", TOKENS, round=1, sites=(TOKENS,), seen="sampling left on")
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        return lambda logits: np.argsort(np.asarray(logits, np.float32), axis=-1)[..., -2].astype(np.int32)

    during(pipeline, "drafter:greedy", make)


@fault(
    "draft-eps-of-target",
    "another epsilon in every norm",
    "drafter.layers.0.attn_out",
    round=0,
    precision="float32",
    sites=("drafter.*", "kv.drafter.*"),
    seen="class of mlx-lm #344",
)
def _(pipeline: Pipeline) -> None:
    pipeline.drafter.config = replace(pipeline.drafter.config, eps=1e-3)


# Bfloat16 does not see it at layer 0, where the catalogue expects it.
fault(
    "draft-blind-to-itself",
    "rows of drafts do not see the drafts before them",
    ATTENTION,
    round=1,
    precision="float32",
    sites=("drafter.layers.*.attn_out",),
    seen="class of tree masks",
)(blind_to_itself)


def _drafter(pipeline: Pipeline) -> DraftModel:
    return cast(DraftModel, pipeline.drafter)


def _kept(pipeline: Pipeline, change: Callable[..., int]) -> None:
    """`change(clean, before, drafts, emitted)` rows stay in the draft model's cache."""
    instead(_drafter(pipeline), "kept", lambda clean: lambda *arguments: change(clean, *arguments))


def _prompt(pipeline: Pipeline, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """The draft model is prefilled with `change(ids)`."""

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        return lambda taps, ids, *rest: clean(taps, change(ids), *rest)

    instead(_drafter(pipeline), "prefill", make)
