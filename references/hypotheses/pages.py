"""Partial KV: other pages of the cache than a row should see, or should retrieve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from parity.references.hypotheses.catalogue import ROWS, Family, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import NotApplicable, together
from parity.references.points import Point

if TYPE_CHECKING:
    from parity.references.partial_kv import PartialKVCache

SCORES, PAGES, OUT = (f"drafter.layers.*.{part}" for part in ("page_scores", "pages", "attn_out"))


def paging(loop: Loop, value: Any, change: Callable[[PartialKVCache, Any], None]) -> Mutation:
    """Every cache that the drafter begins is changed.

    Raises:
        NotApplicable: the drafter attends to all of its cache.
    """
    if loop.partial is None:
        raise NotApplicable("the drafter attends to all of its cache")

    def made(inner: Callable[[], PartialKVCache]) -> PartialKVCache:
        cache = inner()
        change(cache, value)
        return cache

    return loop.new_cache.around(made)


def instead(cache: PartialKVCache, name: str, change: Callable[..., Any]) -> None:
    """In this cache `change(inner, …)` computes what a mutation point does, `inner` being what it is."""
    setattr(cache, name, Point(cache, name, partial(change, getattr(cache, name))))


paged = Family(paging, drafters=ROWS, stages=(SCORES, PAGES, OUT))

SIZES_FIX = "the sizes of --partial-kv: sink, retrieved, window, and rows of a page"
SIZES: dict[str, dict[str, Callable[[int], int]]] = {
    "a sink page too many": {"sink": lambda many: many + 1},
    "a sink page too few": {"sink": lambda many: many - 1},
    "a retrieved page too many": {"retrieved": lambda many: many + 1},
    "a retrieved page too few": {"retrieved": lambda many: many - 1},
    "a window page too many": {"window": lambda many: many + 1},
    "a window page too few": {"window": lambda many: many - 1},
    "pages of twice the rows": {"page": lambda many: 2 * many},
    "pages of half the rows": {"page": lambda many: many // 2},
}


@paged("pages-sizes", "the drafter has {value}", values=tuple(SIZES), fix=SIZES_FIX)
def _(cache: PartialKVCache, value: str) -> None:
    sizes = {name: change(getattr(cache.sizes, name)) for name, change in SIZES[value].items()}
    if min(sizes.values()) < (1 if "page" in sizes else 0):
        raise NotApplicable(f"{value}: there is none")
    positions = cache.pages * cache.sizes.page
    cache.sizes = replace(cache.sizes, **sizes)
    cache.pages = cache.sizes.pages(positions)


Edge = Callable[["PartialKVCache", Tensor], Tensor]


def _numbered(cache: PartialKVCache) -> Tensor:
    return torch.arange(cache.pages)


def _in_window(cache: PartialKVCache, own: Tensor) -> Tensor:
    return _numbered(cache) > own - cache.sizes.window


def _before_window(cache: PartialKVCache, own: Tensor) -> Tensor:
    return _numbered(cache) <= own - cache.sizes.window


def _to_own(cache: PartialKVCache, own: Tensor) -> Tensor:
    return (_numbered(cache) >= cache.sizes.sink) & (_numbered(cache) <= own)


def _sink(cache: PartialKVCache, own: Tensor) -> Tensor:
    return (_numbered(cache) < cache.sizes.sink).expand(len(own), -1)


def _without_own(cache: PartialKVCache, own: Tensor) -> Tensor:
    shifted = (_numbered(cache) > own - cache.sizes.window - 1) & (_numbered(cache) < own)
    return shifted | _sink(cache, own)


EDGES: dict[str, dict[str, Edge]] = {
    "the sink is never seen": {"always": _in_window},
    "the sink is seen where it is retrieved": {"always": _in_window, "retrievable": _before_window},
    "the sink takes part in the retrieval": {"retrievable": _before_window},
    "the window takes part in the retrieval": {"retrievable": _to_own},
    "the window is never seen": {"always": _sink},
    "the window ends one page before a row's own": {"always": _without_own},
}


@paged("pages-edges", "{value}", values=tuple(EDGES), fix="sink and window are always seen, and never retrieved")
def _(cache: PartialKVCache, value: str) -> None:
    for name, edge in EDGES[value].items():
        instead(cache, name, lambda inner, own, edge=edge: edge(cache, own))


OWN: dict[str, Callable[[Tensor], Tensor]] = {
    "the last row of its pass": lambda slots: slots[-1:].expand_as(slots),
    "the first row of its pass": lambda slots: slots[:1].expand_as(slots),
    "the next row": lambda slots: slots + 1,
    "the row before it": lambda slots: (slots - 1).clamp(min=0),
}


@paged(
    "pages-own",
    "a row's window ends with the page of {value}",
    values=tuple(OWN),
    fix="a row's page is its position // PAGE",
)
def _(cache: PartialKVCache, value: str) -> None:
    instead(cache, "own_pages", lambda inner, slots: inner(OWN[value](slots)))


def _ordered(scores: Tensor) -> Tensor:
    """Pages by falling scores, of equal ones the first."""
    return scores.sort(dim=-1, descending=True, stable=True).indices


def _runner_up(scores: Tensor, many: int) -> Tensor:
    best = _ordered(scores)
    return torch.cat((best[..., : many - 1], best[..., many : many + 1]), dim=-1)


def _of_row(row: int) -> Callable[[Tensor, int], Tensor]:
    return lambda scores, many: _ordered(scores[:, [row]]).expand_as(scores)[..., :many]


TAKEN: dict[str, Callable[[Tensor, int], Tensor]] = {
    "the next best page instead of the last of the best": _runner_up,
    "the best page is left out": lambda scores, many: _ordered(scores)[..., 1 : many + 1],
    "the pages of the lowest scores": lambda scores, many: _ordered(-scores)[..., :many],
    "all rows of a pass take the last one's": _of_row(-1),
    "all rows of a pass take the first one's": _of_row(0),
    "of equal scores the last page": lambda scores, many: scores.shape[-1] - 1 - _ordered(scores.flip(-1))[..., :many],
}


@paged(
    "pages-taken",
    "retrieved: {value}",
    stages=(PAGES,),
    values=tuple(TAKEN),
    fix="each row takes the pages of its largest scores",
)
def _(cache: PartialKVCache, value: str) -> None:
    instead(cache, "chosen", lambda inner, scores: TAKEN[value](scores, cache.sizes.retrieved))


READ: dict[str, Callable[[int], int]] = {
    "as many before it as the sink has": lambda sink: -sink,
    "as many behind it as the sink has": lambda sink: sink,
    "one before it": lambda sink: -1,
    "one behind it": lambda sink: 1,
}


@paged(
    "pages-read",
    "for a retrieved page another one is read: {value}",
    stages=(OUT,),
    values=tuple(READ),
    fix="the numbers of retrieved pages count from the cache's first page",
)
def _(cache: PartialKVCache, value: str) -> None:
    shift = READ[value](cache.sizes.sink)
    instead(cache, "attended", lambda inner, pages: (inner(pages) + shift).clamp(0, cache.pages - 1))


layered = Family(drafters=ROWS, stages=(PAGES,))


def in_layers(loop: Loop, note: Callable[[int], None]) -> Mutation:
    """`note(layer)` is told which layer writes its rows, before its pages are scored.

    Raises:
        NotApplicable: the drafter attends to all of its cache.
    """
    if loop.partial is None:
        raise NotApplicable("the drafter attends to all of its cache")

    def remember(inner: Callable[..., Any], *arguments: Any, layer: int) -> Any:
        note(layer)
        return inner(*arguments)

    stack = loop.drafter.stack
    return together(
        each.self_attn.remember.around(partial(remember, layer=number)) for number, each in enumerate(stack)
    )


@layered(
    "pages-of-layer",
    "all layers retrieve the pages of the {value}",
    values=("first layer", "layer before"),
    fix="each layer chooses its own pages",
)
def _(loop: Loop, value: str) -> Mutation:
    now, taken = [0], list[Tensor]()
    if len(loop.drafter.stack) < 2:
        raise NotApplicable("the drafter has one layer")

    def chosen(inner: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
        own = inner(scores)
        if now[0] == 0:
            taken[:] = [own]
        other = taken[0]
        taken[:] = [own] if value == "layer before" else taken
        return other

    def made(cache: PartialKVCache, _: Any) -> None:
        instead(cache, "chosen", chosen)

    def note(layer: int) -> None:
        now[:] = [layer]

    return together((in_layers(loop, note), paging(loop, None, made)))
