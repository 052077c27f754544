"""Operands of attention in few bits with a scale of their own, and shares that are counted in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from parity.block_formats import LEVELS
from parity.references.products.attention.operands import Pass, Variant
from parity.references.products.product import FLOATS, in_steps, kept_in

SCALES: dict[str, tuple[int, ...]] = {
    "with one scale": (0, 1, 2),
    "with a scale by head": (1, 2),
    "with a scale by row": (0, 2),
    "with a scale by row and head": (2,),
    "with a scale by column": (1,),
}
"""The axes [heads, rows, columns] over which one scale is taken."""

SHARE_STEPS = (127, 128, 255, 256)
"""Steps in a share of one."""

FAINT = tuple(2.0**-power for power in range(4, 17, 2))
"""Shares below which a kernel may skip a key."""

FAR = (4.0, 5.0, 6.0, 8.0, 10.0, 12.0)
"""Scores so far below a row's largest of which an exponential may be taken for zero."""

SIDES = {"queries": "q", "keys": "k", "values": "v", "keys and values": "kv"}


def of_scales() -> Iterator[tuple[str, Variant]]:
    """Each with what it says: of operands in bfloat16, as most devices have them before, and of exact ones."""
    for says, change in _of_scales():
        yield says, partial(change, before=torch.bfloat16)
        yield f"{says}, from float32", partial(change, before=torch.float32)


def _of_scales() -> Iterator[tuple[str, partial[Pass]]]:
    for scales, axes in SCALES.items():
        for what, sides in SIDES.items():
            for bits, levels in LEVELS.items():
                low = partial(in_steps, levels=levels)
                yield f"{what} in {bits} {scales}", partial(_scaled, sides=sides, axes=axes, low=low)
            for name, dtype in FLOATS.items():
                low = partial(_in_float, dtype=dtype)
                yield f"{what} in fp8 ({name}) {scales}", partial(_scaled, sides=sides, axes=axes, low=low)
        for bits, levels in LEVELS.items():
            low = partial(in_steps, levels=levels)
            by_other = partial(_scaled_by, axes=axes, low=low)
            yield f"values in {bits} {scales} that is the keys'", partial(by_other, side="v", by="k")
            yield f"keys in {bits} {scales} that is the values'", partial(by_other, side="k", by="v")


def of_shares() -> Iterator[tuple[str, Variant]]:
    """Shares in steps, and faint ones that count nothing; each with what it says."""
    for steps in SHARE_STEPS:
        yield f"the shares in steps of 1/{steps}", partial(_counted, change=partial(_in_steps, steps=steps))
        cut = partial(_in_steps, steps=steps, step=torch.floor)
        yield f"the shares in steps of 1/{steps}, cut off", partial(_counted, change=cut)
    for least in FAINT:
        says = f"shares below 1/{round(1 / least)} are 0"
        yield says, partial(_counted, change=partial(_without_faint, least=least))
        whole = partial(_without_faint, least=least, whole=True)
        yield f"{says}, and the others make up for them", partial(_counted, change=whole)
    for far in FAR:
        hidden = partial(_without_far, far=far)
        yield f"keys whose score is {far:g} below the row's largest are not seen", partial(_scored, change=hidden)
        raised = partial(_not_further, far=far)
        yield f"no score is further than {far:g} below the row's largest", partial(_scored, change=raised)


Low = Callable[[Tensor, Tensor], Tensor]
"""From numbers and the largest size, of those that share a scale, to what is kept of them."""


def _in_float(x: Tensor, most: Tensor, dtype: torch.dtype) -> Tensor:
    scale = most / torch.finfo(dtype).max
    return kept_in(x / scale, dtype) * scale


def _written(one: Pass, side: str) -> list[slice]:
    """Rows of an operand with a scale of their own: those of the prompt, of other passes before, and of the pass."""
    if side == "q":
        return [slice(None)]
    edges = sorted({0, min(one.prompt, one.cached), one.cached, one.k.shape[1]})
    return [slice(first, last) for first, last in pairwise(edges)]


def _scaled(one: Pass, sides: str, axes: tuple[int, ...], low: Low, before: torch.dtype) -> Pass:
    for side in sides:
        one = _scaled_by(one, side, side, axes, low, before)
    return one


def _scaled_by(one: Pass, side: str, by: str, axes: tuple[int, ...], low: Low, before: torch.dtype) -> Pass:
    held, other = (kept_in(getattr(one, name), before) for name in (side, by))
    parts = [
        low(held[:, some], other[:, some].abs().amax(axes, keepdim=True).clamp(min=1e-30))
        for some in _written(one, side)
    ]
    changed: dict[str, Any] = {side: torch.cat(parts, dim=1)}
    return replace(one, **changed)


def _counted(one: Pass, change: Callable[[Tensor], Tensor]) -> Pass:
    return replace(one, rounded=change)


def _scored(one: Pass, change: Callable[[Tensor, Tensor], Tensor]) -> Pass:
    return replace(one, shared=partial(_shared, held=one.shared, change=change))


def _shared(scores: Tensor, sinks: Tensor | None, held: Any, change: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    shares: Tensor = held(change(scores, scores.amax(-1, keepdim=True)), sinks)
    return shares


def _in_steps(shares: Tensor, steps: int, step: Callable[[Tensor], Tensor] = torch.round) -> Tensor:
    return step(shares * steps) / steps


def _without_faint(shares: Tensor, least: float, whole: bool = False) -> Tensor:
    left = torch.where(shares < least, 0.0, shares)
    return (left * shares.sum(-1, keepdim=True) / left.sum(-1, keepdim=True)).nan_to_num() if whole else left


def _without_far(scores: Tensor, largest: Tensor, far: float) -> Tensor:
    return torch.where(scores < largest - far, float("-inf"), scores)


def _not_further(scores: Tensor, largest: Tensor, far: float) -> Tensor:
    return torch.where(scores.isfinite(), torch.maximum(scores, largest - far), scores)
