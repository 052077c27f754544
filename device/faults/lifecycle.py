"""Faults of what a serving engine does beside decoding: prefixes that are in the caches, requests that go, sequences
that are taken off and put back, prefills in chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from parity.device.batch import Batch
from parity.device.faults.planting import PARALLEL, Family, instead
from parity.device.model import Model
from parity.device.pipeline import Pipeline

PAGE = 16
"""Rows of a cache's page."""
fault = Family("lifecycle", gate="lifecycle", sites=(), same_text=True, round=None, drafters=PARALLEL)

Method = Callable[..., Any]


@fault(
    "life-hit-drafter-unwritten",
    "behind a prefix hit the drafter's cache has no rows of the prefix, and counts them",
    seen="vllm#47926",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Method) -> Method:
        def prefill_from(cached: int, *rest: Any) -> int:
            for one in (one for pair in pipeline.drafter.caches for one in pair):
                one[:, :cached] = pipeline.engine.array(np.zeros((1, 1, 1, 1), np.float32), pipeline.drafter.dtype)
            first: int = clean(cached, *rest)
            return first

        return prefill_from

    instead(pipeline, "prefill_from", make)


@fault(
    "life-caches-ahead",
    "the caches keep one row more than the text that is continued has",
    seen="Rapid-MLX#2742",
)
def _(pipeline: Pipeline) -> None:
    for model in (pipeline.target, pipeline.drafter):
        _while_continuing(pipeline, model, "rollback", lambda clean, length: clean(length + 2 if length else 0))


@fault(
    "life-positions-from-zero",
    "the rows that a prefix hit leaves to be run are rotated and masked as if they were the prompt's first",
    seen="positions counted by the pass",
)
def _(pipeline: Pipeline) -> None:
    def step(clean: Method, rows: Any) -> Any:
        return clean(replace(rows, positions=np.maximum(rows.positions - rows.positions[:, :1], 0)))

    _while_continuing(pipeline, pipeline.target, "step", step)


@fault(
    "life-restore-caches-left",
    "what is put back are lengths and tokens; the drafter's rows are those of the sequence between",
    seen="off-loading by side",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Method) -> Method:
        def load(saved: Any) -> None:
            before = pipeline.drafter.caches
            clean(saved)
            pipeline.drafter.caches = before

        return load

    instead(pipeline.drafter, "load", make)


@fault(
    "life-restore-taps-left",
    "the hidden that the next draft starts from is that of the sequence between",
    seen="state beside the caches",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Method) -> Method:
        def restore(name: str) -> None:
            before = pipeline._taps
            clean(name)
            pipeline._taps = before

        return restore

    instead(pipeline, "restore", make)


@fault(
    "life-chunk-blind",
    "a chunk of a prefill does not see the chunks before it",
    seen="masks made for one pass",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Method) -> Method:
        def step(rows: Any) -> Any:
            made = clean(rows)
            first = int(rows.positions[0, 0])
            if not pipeline.prefill_rows or rows.count <= pipeline.k + 1 or not first:
                return made
            behind = pipeline.engine.array((np.arange(made.span) >= first)[None, None])
            return replace(made, seen={window: np.logical_and(seen, behind) for window, seen in made.seen.items()})

        return step

    instead(pipeline.target, "step", make)


@fault(
    "life-hit-page-of-neighbour",
    "where prefixes are hit in several lanes at once, the drafter's first page of each is its neighbour's",
    lanes=3,
    batched=True,
    seen="class of block tables",
)
def _(batch: Batch) -> None:
    def make(clean: Method) -> Method:
        def prefill_from_batch(lanes: Sequence[int], *rest: Any) -> list[int]:
            if len(lanes) > 1:
                _turn_pages([batch.lanes[lane] for lane in lanes])
            first: list[int] = clean(lanes, *rest)
            return first

        return prefill_from_batch

    instead(batch, "prefill_from_batch", make)


def _turn_pages(pipelines: Sequence[Pipeline]) -> None:
    caches = [[one for pair in pipeline.drafter.caches for one in pair] for pipeline in pipelines]
    pages = [[np.array(np.asarray(one)[:, :PAGE], np.float32) for one in own] for own in caches]
    for pipeline, own, other in zip(pipelines, caches, [*pages[1:], *pages[:1]], strict=True):
        for one, page in zip(own, other, strict=True):
            one[:, :PAGE] = pipeline.engine.array(page, pipeline.drafter.dtype)


@fault(
    "life-restore-taps-of-neighbour",
    "the hidden that a sequence goes on from when it is put back is that of the lane in front",
    lanes=3,
    batched=True,
    seen="state beside the caches",
)
def _(batch: Batch) -> None:
    def make(clean: Method) -> Method:
        def restore_batch(lanes: Sequence[int], *rest: Any) -> None:
            clean(lanes, *rest)
            for lane in lanes:
                batch.lanes[lane]._taps = batch.lanes[lane - 1]._taps

        return restore_batch

    instead(batch, "restore_batch", make)


def _while_continuing(pipeline: Pipeline, model: Model, method: str, change: Method) -> None:
    """`change(clean, ...)` stands for a model's method while a prefill continues from the caches."""
    clean = getattr(model, method)

    def make(prefill_from: Method) -> Method:
        def run(*given: Any) -> int:
            setattr(model, method, lambda *rest: change(clean, *rest))
            try:
                first: int = prefill_from(*given)
                return first
            finally:
                with suppress(AttributeError):
                    delattr(model, method)

        return run

    instead(pipeline, "prefill_from", make)
