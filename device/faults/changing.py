"""Faults of a K that changes between rounds: what is left of the K before, and a drafter that a round without drafts
misses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from parity.device.drafter import Drafter
from parity.device.faults.planting import BLOCKS, PARALLEL, STEPS, Family, instead
from parity.device.pipeline import Pipeline

WITH_CACHE = PARALLEL + STEPS + BLOCKS
fault = Family("changing-k", gate="rollback", sites=(), same_text=True, round=None, drafters=WITH_CACHE)

Draft = Callable[..., np.ndarray]


@fault("k-stale", "the K of the round before is drafted", seen="class of vLLM's dynamic speculation")
def _(pipeline: Pipeline) -> None:
    drafter, kept = _drafter(pipeline), [pipeline.k]

    def draft(clean: Draft, taps: Any, first: int, committed: np.ndarray, k: int, record: Any) -> np.ndarray:
        stale, kept[0] = kept[0], k
        return clean(taps, first, committed, stale, record)

    def clear(clean: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            kept[0] = pipeline.k
            clean()

        return run

    _drafting(drafter, draft)
    instead(drafter, "clear", clear)


@fault(
    "k-committed-cut",
    "a pass has room for as many committed rows as its own K leaves, not the K of the round before: the first fall out",
    seen="static shapes by the current K",
)
def _(pipeline: Pipeline) -> None:
    def draft(clean: Draft, taps: Any, first: int, committed: np.ndarray, k: int, record: Any) -> np.ndarray:
        lost = max(len(committed) - (k + 1), 0)
        return clean(taps, first + lost, committed[lost:], k, record)

    _drafting(_drafter(pipeline), draft)


@fault(
    "k-zero-skips-drafter",
    "a round of K = 0 does not run the drafter, whose cache is counted on",
    seen="class of vLLM's disable-by-batch-size",
)
def _(pipeline: Pipeline) -> None:
    def draft(clean: Draft, taps: Any, first: int, committed: np.ndarray, k: int, record: Any) -> np.ndarray:
        return clean(taps, first, committed, k, record) if k else _drafter(pipeline).nothing(record)

    _drafting(_drafter(pipeline), draft)


@fault(
    "k-zero-cache-unwritten",
    "a round of K = 0 runs the drafter, and its keys and values are not kept",
    seen="class of vLLM's disable-by-batch-size",
)
def _(pipeline: Pipeline) -> None:
    drafter = _drafter(pipeline)

    def draft(clean: Draft, taps: Any, first: int, committed: np.ndarray, k: int, record: Any) -> np.ndarray:
        before = drafter.caches
        if not k:
            drafter.rollback(drafter.length)  # which makes new caches
        drafts = clean(taps, first, committed, k, record)
        drafter.caches = drafter.caches if k else before
        return drafts

    _drafting(drafter, draft)


@fault(
    "k-zero-rows-uncounted",
    "the length of the drafter's cache stays as it was over a round of K = 0",
    seen="lengths counted by drafts",
)
def _(pipeline: Pipeline) -> None:
    drafter = _drafter(pipeline)

    def make(clean: Callable[..., int]) -> Callable[..., int]:
        def kept(before: int, drafts: np.ndarray, emitted: np.ndarray) -> int:
            return clean(before, drafts, emitted) if len(drafts) else drafter.length

        return kept

    instead(drafter, "kept", make)
    instead(pipeline, "_refuse_skipped", lambda clean: lambda count: None)


def _drafter(pipeline: Pipeline) -> Drafter:
    return cast(Drafter, pipeline.drafter)


def _drafting(drafter: Drafter, change: Draft) -> None:
    """`change(clean, taps, first, committed, k, record)` stands for its draft."""
    instead(drafter, "draft", lambda clean: lambda *arguments: change(clean, *arguments))
