"""Keys and values that a cache holds in one layout and is read in another: what each row then is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor
from torch.nn.functional import pad

from parity.references.products.attention.operands import Variant, changed

PAGES = (16, 128)
"""Rows of a page, and of a tile of a cache."""

AXES = {"head": 0, "row": 2, "dim": 3}
"""Of a cache in pages, [G, pages, rows, D]."""


def of_layouts() -> Iterator[tuple[str, Variant]]:
    """Heads by dims of each row, rows by heads or dims of each page: written one way and read the other."""
    orders = [(one, other, 1) for one, other in (("head", "dim"), ("dim", "head"))]
    for page in PAGES:
        orders += [(one, other, page) for axis in ("head", "dim") for one, other in (("row", axis), (axis, "row"))]
    for what, sides in {"keys": "k", "values": "v", "keys and values": "kv"}.items():
        for one, other, page in orders:
            where = f" in pages of {page}" if page > 1 else ""
            read = partial(_read_as, first=one, second=other, page=page)
            says = f"the {what} written {one} by {other} and read {other} by {one}{where}"
            yield says, partial(changed, sides=sides, change=read)


def _read_as(x: Tensor, first: str, second: str, page: int) -> Tensor:
    """Rows [G, T, D] written with the second axis inside the first, and read with the first inside the second."""
    axes = (AXES[first], AXES[second])
    apart = pad(x, (0, 0, 0, -x.shape[1] % page)).unflatten(1, (-1, page)).movedim(axes, (-2, -1))
    read = apart.flatten(-2).unflatten(-1, apart.shape[:-3:-1]).transpose(-1, -2)
    rows: Tensor = read.movedim((-2, -1), axes).flatten(1, 2)[:, : x.shape[1]]
    return rows
