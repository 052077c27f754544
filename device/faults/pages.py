"""Faults of partial KV: which pages of its cache a drafter's row attends to, and what they are scored by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from parity.device.faults.planting import ALONE, EITHER, PARALLEL, Family, during
from parity.device.kernels.pages import summarise
from parity.device.pipeline import Pipeline

SIZES = "1+2+1x8"
SCORES, PAGES, OUT = (f"drafter.layers.0.{part}" for part in ("page_scores", "pages", "attn_out"))
ALL_SCORES, ALL_PAGES, ALL_OUT = (f"drafter.layers.*.{part}" for part in ("page_scores", "pages", "attn_out"))
CLOSE = 1.0
"""Of page scores: a tenth of the distance of two neighbours in the tiny drafters."""
SPECPV = "class of SpecPV's retrieval"
fault = Family("pages", same_text=True, drafters=EITHER + ALONE, partial_kv=SIZES)


@fault(
    "pages-sink-not-added",
    "retrieved pages are numbered from behind the sink and gathered from the cache's start",
    OUT,
    sites=(ALL_OUT,),
    seen="SpecPV specpv/kv/kv_cache.py, refresh_retrieval",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def attended(chosen: Any, step: Any, sizes: Any) -> tuple[Any, Any]:
            slots, seen = clean(chosen, step, sizes)
            first, place = sizes.sink * sizes.page, np.arange(slots.shape[-1], dtype=np.int32)
            retrieved = np.logical_and(place >= first, place < first + sizes.retrieved * sizes.page)
            return slots - first * retrieved, seen

        return attended

    during(pipeline, "kernels.pages:attended", make)


@fault(
    "pages-window-late",
    "the window begins one page late: a row sees none of its own page",
    OUT,
    sites=(ALL_OUT,),
    seen="ports that count the page being written as one to come",
)
def _(pipeline: Pipeline) -> None:
    during(
        pipeline,
        "kernels.pages:attended",
        lambda clean: lambda chosen, step, sizes: clean(chosen, replace(step, own=step.own + 1), sizes),
    )


@fault("pages-sink-lost", "sink pages are not attended to", OUT, sites=(ALL_OUT,), seen=SPECPV)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def attended(chosen: Any, step: Any, sizes: Any) -> tuple[Any, Any]:
            slots, seen = clean(chosen, step, sizes)
            return slots, np.logical_and(seen, np.arange(slots.shape[-1], dtype=np.int32) >= sizes.sink * sizes.page)

        return attended

    during(pipeline, "kernels.pages:attended", make)


@fault(
    "pages-window-twice",
    "window pages may be retrieved as well, and count twice",
    SCORES,
    sites=(ALL_SCORES, ALL_OUT),
    seen=SPECPV,
)
def _(pipeline: Pipeline) -> None:
    def widened(clean: Callable[..., Any]) -> Callable[..., Any]:
        return lambda scores, products, own, sizes: clean(scores, products, own + sizes.window, sizes)

    def attending(clean: Callable[..., Any]) -> Callable[..., Any]:
        def attended(chosen: Any, step: Any, sizes: Any) -> tuple[Any, Any]:
            first, end = sizes.sink * sizes.page, (sizes.sink + sizes.retrieved) * sizes.page
            slots, seen = clean(chosen, step, sizes)
            place = np.arange(slots.shape[-1], dtype=np.int32)
            retrieved = np.logical_and(place >= first, place < end)
            legal = np.logical_and(slots >= first, slots <= step.positions[:, :, None])
            return slots, np.where(retrieved, legal, seen)

        return attended

    during(pipeline, "kernels.pages:ranked", widened)
    during(pipeline, "kernels.pages:attended", attending)


@fault(
    "pages-summary-stale",
    "pages are summarised before the pass writes its keys",
    SCORES,
    sites=(ALL_SCORES,),
    seen="caches whose metadata is updated by another stream",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def write(x: Any, step: Any, weights: Any, caches: Any, config: Any, tap: Any) -> None:
            keys, _, low, high = caches
            summarise(keys, low, high, step.pages.touched, config.partial.page)
            clean(x, step, weights, caches, config, tap)

        return write

    during(pipeline, "kernels.drafter_layer:_write", make)
    during(pipeline, "kernels.drafter_layer:summarise", lambda clean: lambda *arguments: None)


@fault(
    "pages-summary-kept",
    "a page keeps the summary of the rows it had when it was begun",
    gate="rollback",
    seen="SpecPV specpv/kv/kv_cache.py counts summarised blocks and never looks back",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def summarise_new(keys: Any, low: Any, high: Any, touched: Any, page: int) -> None:
            if pipeline.drafter.length % page == 0:
                clean(keys, low, high, touched, page)
            elif touched.shape[1] > 1:
                clean(keys, low, high, touched[:, 1:], page)

        return summarise_new

    during(pipeline, "kernels.drafter_layer:summarise", make)


@fault("pages-score-largest", "pages are scored by their largest keys alone", SCORES, sites=(ALL_SCORES,), seen=SPECPV)
def _(pipeline: Pipeline) -> None:
    during(
        pipeline,
        "kernels.pages:page_scores",
        lambda clean: lambda q, low, high, heads: clean(q, high, high, heads),
    )


@fault(
    "pages-score-mean",
    "pages are scored by the middle of their keys, not by the bounds",
    SCORES,
    sites=(ALL_SCORES,),
    seen="ports of mean-pooled block retrieval",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def page_scores(q: Any, low: Any, high: Any, heads: int) -> Any:
            middle = (low + high) * 0.5
            return clean(q, middle, middle, heads)

        return page_scores

    during(pipeline, "kernels.pages:page_scores", make)


@fault(
    "pages-score-one-group",
    "the first kv head's queries choose for all heads",
    SCORES,
    sites=(ALL_SCORES,),
    seen="class of kernels that share a page table over heads",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def page_scores(q: Any, low: Any, high: Any, heads: int) -> Any:
            each = q.shape[2] // low.shape[2]
            return clean(q[:, :, :each], low[:, :, :1], high[:, :, :1], each)

        return page_scores

    during(pipeline, "kernels.pages:page_scores", make)


@fault(
    "pages-runner-up",
    "the best page left out retrieved instead of the last one where the two are close",
    PAGES,
    sites=(ALL_PAGES,),
    round=None,
    seen="approximate top-k and sorts on accelerators",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def top_k(scores: Any, k: int) -> Any:
            best = clean(scores, k + 1)
            ranked = np.take_along_axis(scores, best, axis=-1)
            close = ranked[..., k - 1 : k] - ranked[..., k:] < CLOSE
            return np.concatenate([best[..., : k - 1], np.where(close, best[..., k:], best[..., k - 1 : k])], axis=-1)

        return top_k

    during(pipeline, "kernels.pages:top_k", make)


@fault(
    "pages-of-last-row",
    "the last row of a pass chooses the pages of all its rows",
    PAGES,
    sites=(ALL_PAGES,),
    seen="SpecPV retrieves once for all rows of a pass",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def top_k(scores: Any, k: int) -> Any:
            chosen = clean(scores, k)
            return chosen[:, -1:] + 0 * chosen

        return top_k

    during(pipeline, "kernels.pages:top_k", make)


@fault(
    "pages-of-first-layer",
    "every layer attends to the pages that the first one chose",
    "drafter.layers.1.pages",
    sites=(ALL_PAGES,),
    drafters=PARALLEL,
    seen="class of retrieval indices shared over layers",
)
def _(pipeline: Pipeline) -> None:
    calls = count()
    kept: list[Any] = []

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def top_k(scores: Any, k: int) -> Any:
            if next(calls) % len(pipeline.drafter.layers) == 0:
                kept[:] = [clean(scores, k)]
            return kept[0]

        return top_k

    during(pipeline, "kernels.pages:top_k", make)
