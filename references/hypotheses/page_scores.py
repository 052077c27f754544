"""Partial KV: pages whose scores, or the summaries that these are made of, are made another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from parity.references.hypotheses.catalogue import ROWS, Family, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import together
from parity.references.hypotheses.pages import SCORES, in_layers, instead, paging

if TYPE_CHECKING:
    from parity.references.partial_kv import PartialKVCache

scored = Family(paging, drafters=ROWS, stages=(SCORES,))


def _largest(q: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return q @ high.transpose(2, 3)


def _smallest(q: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return q @ low.transpose(2, 3)


def _either(q: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.maximum(_largest(q, low, high), _smallest(q, low, high))


def _mean(products: Tensor, group: int) -> Tensor:
    return products.mean(dim=1)


PRODUCTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "the product with its largest keys alone": _largest,
    "the product with its smallest keys alone": _smallest,
    "the sum of both products": lambda q, low, high: _largest(q, low, high) + _smallest(q, low, high),
    "the smaller of both products": lambda q, low, high: torch.minimum(_largest(q, low, high), _smallest(q, low, high)),
    "the larger product of each dimension, added up": lambda q, low, high: (
        q.clamp(min=0) @ high.transpose(2, 3) + q.clamp(max=0) @ low.transpose(2, 3)
    ),
}
OVER_HEADS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "the largest of all heads": lambda products, group: products.amax(dim=1),
    "the sum of all heads": lambda products, group: products.sum(dim=1),
    "that of the first head": lambda products, group: products[:, 0],
    "that of the last head": lambda products, group: products[:, -1],
    "the mean of the first group of heads": lambda products, group: products[:, :group].mean(dim=1),
    "the mean of the last group of heads": lambda products, group: products[:, -group:].mean(dim=1),
}


@scored(
    "pages-score",
    "a page's score is {value}",
    values=(*PRODUCTS, *OVER_HEADS),
    fix="the larger of the products with a page's largest and smallest keys, averaged over all heads",
)
def _(cache: PartialKVCache, value: str) -> None:
    product, joined = PRODUCTS.get(value, _either), OVER_HEADS.get(value, _mean)

    def scores(inner: Callable[..., Any], q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        group = q.shape[1] // k.shape[1]
        low, high = (side.float().repeat_interleave(group, dim=1) for side in cache.summaries(k))
        sizes = torch.maximum(_largest(q.float(), low, high).abs(), _smallest(q.float(), low, high).abs())
        return joined(product(q.float(), low, high), group), joined(sizes, group)

    instead(cache, "scores", scores)


def _padded(cache: PartialKVCache, k: Tensor) -> Tensor:
    """Keys by page, [B, G, P, PAGE, D]; missing rows are 0."""
    rows = torch.nn.functional.pad(k, (0, 0, 0, max(cache.pages * cache.sizes.page - k.shape[2], 0)))
    pages: Tensor = rows[:, :, : cache.pages * cache.sizes.page].unflatten(2, (cache.pages, cache.sizes.page))
    return pages


ONE_KEY: dict[str, Callable[[Tensor], Tensor]] = {
    "its mean key": lambda pages: pages.mean(dim=3),
    "its first key": lambda pages: pages[:, :, :, 0],
    "its last key": lambda pages: pages[:, :, :, -1],
    "the middle of its largest and its smallest key": lambda pages: (pages.amin(dim=3) + pages.amax(dim=3)) / 2,
}


@scored(
    "pages-one-key",
    "a page is summarised by {value}",
    values=tuple(ONE_KEY),
    fix="a page is summarised by its largest and its smallest key in each dimension",
)
def _(cache: PartialKVCache, value: str) -> None:
    def summaries(inner: Callable[..., Any], k: Tensor) -> tuple[Tensor, Tensor]:
        key = ONE_KEY[value](_padded(cache, k))
        return key, key

    instead(cache, "summaries", summaries)


summarised = Family(
    drafters=ROWS,
    stages=(SCORES,),
    fix="a page's summary is made anew of its rows whenever one of them is written",
    cost=2,
)
KEPT, FIRST, LATE = (
    "keeps rejected rows",
    "is made with its first row, and stays",
    "is made of the rows before the pass",
)

Summary = tuple[Tensor, Tensor]


@summarised("pages-summary-old", "a page's summary {value}", values=(KEPT, FIRST, LATE))
def _(loop: Loop, value: str) -> Mutation:
    layer, kept, begun = [0], dict[int, Summary](), dict[int, int]()

    def summaries(inner: Callable[..., Summary], k: Tensor, cache: PartialKVCache) -> Summary:
        now, number = inner(k), layer[0]
        made = _old(value, now, kept.get(number), begun.get(number, 0))
        kept[number] = now if value == LATE else made
        begun[number] = -(-k.shape[2] // cache.sizes.page)
        return made

    def made(cache: PartialKVCache, _: Any) -> None:
        kept.clear()
        begun.clear()
        instead(cache, "summaries", lambda inner, k: summaries(inner, k, cache))

    def note(number: int) -> None:
        layer[:] = [number]

    return together((in_layers(loop, note), paging(loop, None, made)))


def _old(value: str, now: Summary, before: Summary | None, begun: int) -> Summary:
    """What stands for summaries [B, G, P, D], of which `begun` pages had rows before."""
    if before is None and value == LATE:
        return torch.zeros_like(now[0]), torch.zeros_like(now[1])
    if before is None:
        return now
    if value == KEPT:
        return torch.minimum(now[0], before[0]), torch.maximum(now[1], before[1])
    if value == LATE:
        return before
    known = (torch.arange(now[0].shape[2]) < begun)[:, None]
    return torch.where(known, before[0], now[0]), torch.where(known, before[1], now[1])
