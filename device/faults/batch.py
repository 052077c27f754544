"""Faults of a batch: what is right for the first lane, or for a sequence that sits there alone, and not for its
neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parity.device.batch import Batch
from parity.device.faults.planting import Family, during, instead
from parity.device.kernels.program import program
from parity.device.pipeline import Pipeline
from parity.seam import Tap

ROOM, PAGE = 12, 16
"""Rows that a kernel has room for; rows of a cache's page."""
fault = Family("batch", gate="batch", lanes=2, batched=True, sites=())

Kernel = Callable[..., Any]


@fault(
    "batch-later-lanes-stale",
    "from the second draft on every lane but the first has the drafter's positions and slots of the draft before",
    "drafter.positions",
    round=2,
    sites=("drafter.positions", "drafter.slots"),
    same_text=True,
    seen="vllm#48089",
)
def _(batch: Batch) -> None:
    for pipeline in batch.lanes[1:]:
        _stale(pipeline)


def _stale(pipeline: Pipeline) -> None:
    """Positions and slots from where the draft before began."""
    before = [0, 0]  # where the draft before began, and the prompt's rows

    def make(clean: Kernel) -> Kernel:
        def layout(ids: np.ndarray, others: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            ids, positions, slots = clean(ids, others)
            first = pipeline.drafter.length
            late = first - before[0] if first and before[0] >= before[1] else 0
            before[:] = (first, before[1]) if first else (0, len(ids))
            return ids, positions - late, slots - late

        return layout

    instead(pipeline.drafter, "layout", make)


@fault(
    "batch-accept-least",
    "every lane emits as many tokens as the one that accepts least",
    "accept.length",
    round=None,
    sites=("accept.*",),
    same_text=True,
    seen="llama.cpp#27117",
)
def _(batch: Batch) -> None:
    def make(clean: Kernel) -> Kernel:
        @program
        def emitted_length(drafts: Any, verified: Any, ends: Any, budget: Any) -> Any:
            lengths = clean(drafts, verified, ends, budget)
            return np.minimum(lengths, np.min(lengths, axis=0, keepdims=True))

        return emitted_length

    _everywhere(batch, "pipeline:emitted_length", make)


@fault(
    "batch-budget-of-first",
    "every lane has the token budget that the first one has left",
    chained="accept.length",
    round=None,
    same_text=True,
    sites=("accept.*",),
    seen="scalar arguments of a batched kernel",
)
def _(batch: Batch) -> None:
    def make(clean: Kernel) -> Kernel:
        @program
        def emitted_length(drafts: Any, verified: Any, ends: Any, budget: Any) -> Any:
            return clean(drafts, verified, ends, budget[:1] + 0 * budget)

        return emitted_length

    _everywhere(batch, "pipeline:emitted_length", make)


@fault(
    "batch-lengths-of-last",
    "a rollback cuts every lane's caches to the length of the last",
    "kv.target.0.k",
    round=1,
    sites=("kv.*",),
    seen="scalar arguments of a batched kernel",
)
def _(batch: Batch) -> None:
    def make(clean: Kernel) -> Kernel:
        @program
        def rolled_back(lengths: Any, caches: Any) -> Any:
            return clean(lengths[-1:] + 0 * lengths, caches)

        return rolled_back

    _everywhere(batch, "kernels.cache:rolled_back", make)


@fault(
    "batch-argmax-of-neighbour",
    "each lane has its neighbour's greedy tokens",
    "target.tokens",
    sites=("target.tokens", "verify.tokens"),
    seen="class of per-row argmax",
)
def _(batch: Batch) -> None:
    def make(clean: Kernel) -> Kernel:
        def greedy(logits: Any) -> Any:
            return _turned(clean(logits))

        return greedy

    _everywhere(batch, "target:greedy", make)


@fault(
    "batch-page-of-neighbour",
    "the first page of each lane's keys and values is its neighbour's",
    "target.layers.0.attn_out",
    sites=("target.layers.*.attn_out",),
    seen="class of block tables",
)
def _(batch: Batch) -> None:
    def make(clean: Kernel) -> Kernel:
        def attend(q: Any, keys: Any, values: Any, seen: Any, sinks: Any = None) -> Any:
            keys, values = (
                np.concatenate([_turned(cache[:, :PAGE]), cache[:, PAGE:]], axis=1) for cache in (keys, values)
            )
            return clean(q, keys, values, seen, sinks)

        return attend

    _everywhere(batch, "kernels.target_layer:attend", make)


@fault(
    "batch-rows-dropped",
    "in a pass of several lanes the experts have room for 12 rows, the rest gets nothing",
    "target.layers.0.ffn_out",
    sites=("target.layers.*.ffn_out",),
    seen="class of expert capacity",
)
def _(batch: Batch) -> None:
    def make(clean: Kernel) -> Kernel:
        def moe(x: Any, *rest: Any) -> Any:
            made = clean(x, *rest)
            if x.shape[0] == 1:
                return made
            row = np.arange(x.shape[0] * x.shape[1], dtype=np.int32).reshape(x.shape[0], x.shape[1], 1)
            return np.where(row + 0 * batch.lanes[0].engine.array(row) < ROOM, made, 0.0)

        return moe

    _everywhere(batch, "kernels.target_layer:moe", make)


@fault(
    "batch-join-drafter-unwritten",
    "a sequence that joins others gets no rows in the drafter's cache, whose length counts them",
    "kv.drafter.0.k",
    chained="kv.drafter.0.k",
    round=0,
    sites=("kv.drafter.*", "drafter.layers.*.attn_out"),
    same_text=True,
    seen="vllm#47926",
)
def _(batch: Batch) -> None:
    for pipeline in batch.lanes:
        _unwritten(pipeline, [other for other in batch.lanes if other is not pipeline])


def _unwritten(pipeline: Pipeline, others: Sequence[Pipeline]) -> None:
    def make(clean: Kernel) -> Kernel:
        def prefill_drafter(*given: Any) -> None:
            before = pipeline.drafter.caches
            beside = any(other.target.length for other in others)
            if beside:
                pipeline.drafter.rollback(pipeline.drafter.length)  # which makes new caches
            clean(*given)
            pipeline.drafter.caches = before if beside else pipeline.drafter.caches

        return prefill_drafter

    instead(pipeline, "_prefill_drafter", make)


@fault(
    "batch-taps-crossed",
    "in a verify pass each lane's tap is handed its neighbour's tensors",
    "target.embed",
    round=1,
    sites=("target.*", "verify.*", "drafter.taps", "kv.target.*"),
    same_text=True,
    seen="captures of the wrong row",
)
def _(batch: Batch) -> None:
    def make(clean: Kernel) -> Kernel:
        def verify_batch(lanes: Sequence[int], drafts: Sequence[np.ndarray], taps: Sequence[Tap]) -> list[np.ndarray]:
            tokens: list[np.ndarray] = clean(lanes, drafts, [*taps[1:], *taps[:1]])
            return tokens

        return verify_batch

    instead(batch, "verify_batch", make)


@fault(
    "batch-race",
    "now and then the last lane's first row comes out of the final norm 10 % too large",
    "target.pre_head_hidden",
    round=None,
    sites=("target.pre_head_hidden",),
    same_text=True,
    seen="class of races between lanes",
)
def _(batch: Batch) -> None:
    calls = [0]

    def make(clean: Kernel) -> Kernel:
        def norm(x: Any, *rest: Any) -> Any:
            made = clean(x, *rest)
            calls[0] += 1
            if x.shape[0] == 1 or calls[0] % 3:
                return made
            made[-1:, :1] = made[-1:, :1] * 1.1
            return made

        return norm

    _everywhere(batch, "target:gpt_oss_norm", make)


def _everywhere(batch: Batch, place: str, make: Callable[[Kernel], Kernel]) -> None:
    """`make(clean)` stands for a kernel while any lane is in a verb."""
    for pipeline in batch.lanes:
        during(pipeline, place, make)


def _turned(value: Any) -> Any:
    """Each lane's neighbour's part."""
    return np.concatenate([value[-1:], value[:-1]], axis=0) if value.shape[0] > 1 else value
