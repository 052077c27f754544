"""Partial KV: attention over some pages of a cache, whose rows are gathered.

Each layer keeps two summaries of every page, the smallest and the largest key in each dimension: [B, P + 1, G, D]. Page
P is the trash page. What a page is that is not full yet nobody asks: a row retrieves full pages only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.device.kernels import cache
from parity.device.kernels.attention import MASKED, attend
from parity.device.kernels.collectives import all_reduce
from parity.device.kernels.moe import top_k
from parity.device.kernels.program import program
from parity.device.kernels.tap import Tap
from parity.partial_kv import PartialKV


@dataclass(frozen=True)
class PageStep:
    """What partial KV needs of a pass.

    Args:
        positions: int32 [B, W].
        own: int32 [B, W], the page of each row.
        touched: int32 [B, n], the pages that the pass writes to.
    """

    positions: Any
    own: Any
    touched: Any


@program
def summarise(keys: Any, low: Any, high: Any, touched: Any, page: int) -> Any:
    """Make the summaries of these pages [B, n] anew, in place, from the cache's keys [B, rows + 1, G, D]."""
    rows = gathered(keys, slots_of(touched, page)).reshape(keys.shape[0], -1, page, *keys.shape[2:])
    cache.write(low, np.min(rows, axis=2), touched)
    cache.write(high, np.max(rows, axis=2), touched)
    return touched


def attend_to_pages(q: Any, caches: tuple[Any, ...], step: PageStep, sizes: PartialKV, heads: int, tap: Tap) -> Any:
    """Softmax attention of each row over its own pages: [B, W, N * D].

    Args:
        q: [B, W, N, D].
        caches: keys, values and the two summaries.
        heads: N of all ranks.
    """
    keys, values, low, high = caches
    scores, products = page_scores(q, low[:, :-1], high[:, :-1], heads)
    scores = tap("page_scores", ranked(scores, products, step.own, sizes))
    chosen = tap("pages", top_k(scores, sizes.retrieved))
    slots, seen = attended(chosen, step, sizes)
    batch, rows, count = slots.shape
    flat = slots.reshape(batch, rows * count)
    each = (batch * rows, count, *keys.shape[2:])
    held_keys, held_values = (gathered(one, flat).reshape(*each) for one in (keys, values))
    seen = seen.reshape(batch * rows, 1, count)
    mixed = attend(q.reshape(batch * rows, 1, *q.shape[2:]), held_keys, held_values, seen)
    return mixed.reshape(batch, rows, -1)


def page_scores(q: Any, low: Any, high: Any, heads: int) -> tuple[Any, Any]:
    """Of every page and row the mean over heads of the larger product, and of the larger size: float32 [B, W, P].

    Args:
        q: [B, W, N, D].
        low, high: [B, P, G, D].
    """
    batch, rows, own, dim = q.shape
    groups = low.shape[2]
    grouped = q.reshape(batch, rows, groups, -1, dim).transpose(0, 2, 3, 1, 4).reshape(batch, groups, -1, dim)
    grouped = grouped.astype(np.float32)
    below, above = (np.matmul(grouped, side.transpose(0, 2, 3, 1).astype(np.float32)) for side in (low, high))
    larger = np.maximum(below, above), np.maximum(np.maximum(below, -below), np.maximum(above, -above))
    scores, products = (all_reduce(np.sum(one.reshape(batch, own, rows, -1), axis=1)) / heads for one in larger)
    return scores, products


def ranked(scores: Any, products: Any, own: Any, sizes: PartialKV) -> Any:
    """Scores [B, W, P], and below all of a row's those pages that it may not retrieve.

    They stand below its least score by its largest product [B, W, P]; 0 where it may retrieve none.
    """
    page = np.arange(scores.shape[-1], dtype=np.int32)
    may = np.logical_and(page >= sizes.sink, page <= own[:, :, None] - sizes.window)
    least = np.min(np.where(may, scores, -MASKED), axis=-1, keepdims=True)
    largest = np.max(np.where(may, products, 0.0), axis=-1, keepdims=True)
    below = np.where(np.any(may, axis=-1)[..., None], least - largest, 0.0)
    return np.where(may, scores, below)


def attended(chosen: Any, step: PageStep, sizes: PartialKV) -> tuple[Any, Any]:
    """Slots [B, W, A] of a row's sink, retrieved and window pages, and which of them it sees: bool [B, W, A].

    A sink page inside the window counts there, and a chosen page that may not be retrieved counts nowhere.
    """
    before = step.own[:, :, None] - sizes.window
    first = [0 * before + np.arange(sizes.sink, dtype=np.int32)] if sizes.sink else []
    last = before + 1 + np.arange(sizes.window, dtype=np.int32)
    counts = [one <= before for one in first]
    counts += [np.logical_and(chosen >= sizes.sink, chosen <= before), last >= 0]
    pages = np.concatenate([*first, chosen, last], axis=-1)
    slots = pages[..., None] * sizes.page + np.arange(sizes.page, dtype=np.int32)
    seen = np.logical_and(np.concatenate(counts, axis=-1)[..., None], slots <= step.positions[:, :, None, None])
    shape = (*pages.shape[:2], -1)
    return slots.reshape(*shape), seen.reshape(*shape)


def slots_of(pages: Any, page: int) -> Any:
    """The slots of pages [B, n]: [B, n * page]."""
    slots = pages[:, :, None] * page + np.arange(page, dtype=np.int32)
    return slots.reshape(slots.shape[0], -1)


def gathered(held: Any, slots: Any) -> Any:
    """Rows of a cache [B, rows + 1, G, D] at slots [B, n]; outside it the first row, or the last one, the trash."""
    slots = np.minimum(np.maximum(slots, 0), held.shape[1] - 1)
    if held.shape[0] == 1:
        return np.take(held[0], slots[0], axis=0).reshape(1, -1, *held.shape[2:])
    return np.take_along_axis(held, slots[:, :, None, None], axis=1)
