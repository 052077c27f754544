"""Keys that are not seen though they should be, or the other way round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from parity.references.products.attention.operands import Pass, Variant

NEAR = (1, 2, 3, 4)
"""Distances of single keys, and numbers of rows in a pass."""
FIRST = (1, 4, 8, 16)
"""Keys at the start of the cache."""
WINDOWS = (8, 16, 32, 64, 128, 256)
"""Keys that a row sees at the most, its own among them."""


def _keys(one: Pass) -> Tensor:
    """Numbers of the keys, [S, T]."""
    return torch.arange(one.seen.shape[1]).expand_as(one.seen)


def _oldest(one: Pass) -> Tensor:
    """The number of the oldest key that each row sees, [S, 1]."""
    return torch.where(one.seen, _keys(one), one.seen.shape[1]).amin(1, keepdim=True)


Which = Callable[[Pass], Tensor]


def _without(which: Which) -> Variant:
    return lambda one: replace(one, seen=one.seen & ~which(one))


def _beside(which: Which) -> Variant:
    return lambda one: replace(one, seen=one.seen | which(one))


def of_masks() -> Iterator[tuple[str, Variant]]:
    """Each mask with what it says."""
    hidden: dict[str, Which] = {
        "a row does not see its own key": lambda one: one.distance == 0,
        "a row does not see the other rows of its pass": partial(_others, row=0),
        "a row sees no row of its pass": lambda one: _keys(one) >= one.cached,
        "a row sees its own pass alone": lambda one: _keys(one) < one.cached,
        "a row sees itself alone": lambda one: one.distance != 0,
        "the last cached key is not seen": lambda one: _keys(one) == one.cached - 1,
        "a row sees no further back than the last of its pass": lambda one: _keys(one) < _oldest(one)[-1],
        "the oldest key that is due is not seen": lambda one: _keys(one) == _oldest(one),
    }
    for number in NEAR:
        hidden[f"rows of the pass from number {number} on do not see each other"] = partial(_others, row=number)
        hidden[f"the key {number} back is not seen"] = partial(_back, number=number)
    for number in WINDOWS:
        hidden[f"a row sees the last {number} keys alone"] = partial(_beyond, number=number)
        hidden[f"keys in front of the row's own tile of {number} are not seen"] = partial(_tiles_before, number=number)
        hidden[f"earlier keys of the row's own tile of {number} are not seen"] = partial(_own_tile, number=number)
        hidden[f"the last key of each page of {number} is not seen"] = partial(_at_page, number=number, place=-1)
        hidden[f"the first key of each page of {number} is not seen"] = partial(_at_page, number=number, place=0)
    for number in FIRST:
        hidden[f"the first {number} keys are not seen"] = partial(_before, number=number)
    shown: dict[str, Which] = {
        f"the first {number} keys are seen too": partial(_before, number=number) for number in FIRST
    }
    shown |= {
        "one key more, the next older, is seen": lambda one: _keys(one) == _oldest(one) - 1,
        "the next row is seen": lambda one: one.distance == -1,
        "all rows of the pass are seen": lambda one: _keys(one) >= one.cached,
        "every key is seen": lambda one: torch.ones_like(one.seen),
        "every key up to the row's own is seen": lambda one: one.distance >= 0,
        "a row sees as far back as the first of its pass": lambda one: (
            (one.distance >= 0) & (_keys(one) >= _oldest(one)[0])
        ),
    }
    for size in WINDOWS:
        hidden[f"a row sees from its oldest key's next page of {size} on"] = partial(
            _before_page, size=size, later=True
        )
        shown[f"the whole page of {size} of a row's oldest key is seen"] = partial(_from_page, size=size)
        shown[f"keys to the end of the row's own page of {size} are seen"] = partial(_to_page, size=size)
    for size in (*NEAR[1::2], *WINDOWS):
        hidden[f"a row sees no further back than the last row of its tile of {size} in the pass"] = partial(
            _before_tile, size=size
        )
        shown[f"a row sees as far back as the first row of its tile of {size} in the pass"] = partial(
            _from_tile, size=size
        )
        shown[f"a row sees as far as the last row of its tile of {size} in the pass"] = partial(_to_tile, size=size)
    yield from ((says, _without(which)) for says, which in hidden.items())
    yield from ((says, _beside(which)) for says, which in shown.items())
    for where, every in (("", True), (" within a kv group", False)):
        by_head, by_row = (partial(_packed, by_head=by_head, every=every) for by_head in (True, False))
        yield f"heads are packed head by head{where}, their mask row by row", by_head
        yield f"heads are packed row by row{where}, their mask head by head", by_row


def _packed(one: Pass, by_head: bool, every: bool) -> Pass:
    """Each head's rows [N, S] under the mask of the row that another order of packing gives."""
    rows, heads = one.q.shape[1], len(one.q) if every else len(one.q) // len(one.k)
    places = torch.arange(heads * rows)
    taken = (places // heads).view(heads, rows) if by_head else (places % rows).view(rows, heads).T
    return replace(one, seen=one.seen[taken.repeat(len(one.q) // heads, 1)])


def _others(one: Pass, row: int) -> Tensor:
    """Keys of the pass from a row on, but for each row's own."""
    return (_keys(one) >= one.cached + row) & (one.distance != 0)


def _back(one: Pass, number: int) -> Tensor:
    return one.distance == number


def _beyond(one: Pass, number: int) -> Tensor:
    return one.distance >= number


def _tile_of_row(one: Pass, number: int) -> Tensor:
    """The first key of the tile that each row's own key lies in, [S, T]."""
    return (one.distance + _keys(one)) // number * number


def _tiles_before(one: Pass, number: int) -> Tensor:
    return _keys(one) < _tile_of_row(one, number)


def _own_tile(one: Pass, number: int) -> Tensor:
    return (_keys(one) >= _tile_of_row(one, number)) & (one.distance > 0)


def _at_page(one: Pass, number: int, place: int) -> Tensor:
    """Keys that lie at one place of their page."""
    return _keys(one) % number == place % number


def _before_page(one: Pass, size: int, later: bool) -> Tensor:
    """Keys in front of the page of each row's oldest key, or of the next one where that is inside its page."""
    first = (_oldest(one) + (size - 1 if later else 0)) // size * size
    return _keys(one) < first


def _from_page(one: Pass, size: int) -> Tensor:
    return ~_before_page(one, size, later=False) & (one.distance >= 0)


def _to_page(one: Pass, size: int) -> Tensor:
    return (_keys(one) < _tile_of_row(one, size) + size) & (one.distance < 0)


def _of_tile(one: Pass, size: int, last: bool) -> Tensor:
    """The number of the pass' row that is the last of each row's tile, or the first, [S]."""
    rows = torch.arange(len(one.seen))
    tile = rows // size * size
    return (tile + size - 1).clamp(max=len(rows) - 1) if last else tile


def _before_tile(one: Pass, size: int) -> Tensor:
    return _keys(one) < _oldest(one)[_of_tile(one, size, last=True)]


def _from_tile(one: Pass, size: int) -> Tensor:
    return (one.distance >= 0) & (_keys(one) >= _oldest(one)[_of_tile(one, size, last=False)])


def _to_tile(one: Pass, size: int) -> Tensor:
    rows = _of_tile(one, size, last=True)
    return one.seen[rows] & (one.distance < 0)


def _before(one: Pass, number: int) -> Tensor:
    return _keys(one) < number
