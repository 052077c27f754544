"""What a stage's rows are a product of, and how a module is watched for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.block_formats import block_formats
from parity.references.hypotheses.mutating import entering, layers_of

FLOATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
"""Formats of eight bits that values are kept in by mistake."""

NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Formats in which a float32 kernel keeps what it should not."""

LARGE = 1 << 27
"""Weights of a layer beyond which it is not run again, nor held beside another: 1 GiB in float64, of each layer."""

STEPS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Rows by which something may be late: by one, or by a tile."""

Parts = Sequence[tuple[str, int, int]]
"""Names of runs of columns: (name, first, behind the last)."""


Made = Callable[[], "list[Product]"]
"""Makes the products once the run ended."""

Changed = Callable[[Any], Any]
"""From numbers of rows, or a slice of them, to what would enter at these rows under one small change [r, D]."""

Others = Callable[[], Iterator[tuple[str, Changed]]]
"""Small changes as (what is changed, what would enter)."""


def given(x: Any) -> Changed:
    """A change of which all rows [R, D] are made already."""
    return lambda rows: x[rows]


@dataclass(frozen=True)
class Product:
    """What a stage's rows are a product of.

    Attributes:
        x: what enters, float64 [R, D], R rows in the stage's order.
        weight: float32 [C, D]: a head's is large. None where the stage is no product, and `others` are its rows.
        parts: names of runs of columns of D: (name, first, behind the last).
        others: what would enter under small changes, made for the rows that are asked for.
        back: from the stage's rows [r, C] and their numbers [r] to the rows of the product [r, C], where something lies
            between them; NaN where that is not found. None where they are the same.
        inside: what those rows are called, where there is something between.
        led: rows that are led back at the most: what costs much is asked for some.
        keys: makes the keys that some rows attend to, from their numbers; None where the product is not attention's.
        beside: other weights [C, D] that might stand in the weight's place, as (whose, weight).
        table: where ids choose rows: (ids [R], float32 [V, C]).
        places: which of a cache's rows they are, (round, position) int64 [R, 2]; None where they are all of a stage's.
    """

    x: Any
    weight: Any | None
    parts: Parts
    others: Others = lambda: iter(())
    back: Callable[[Any, Any], Any] | None = None
    inside: str = ""
    led: int | None = None
    keys: Callable[[Sequence[int]], Any] | None = None
    beside: Callable[[], Iterator[tuple[str, Any]]] = lambda: iter(())
    table: tuple[Any, Any] | None = None
    places: Any | None = None


def as_it_is(x: Tensor) -> Tensor:
    """A change of nothing."""
    return x


def kept_in(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Float64 rounded to a format, by way of float32 as a kernel has them."""
    return x.float().to(dtype).double()


def in_formats() -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Each narrow format with its rounding; eight bits also of what a device has in bfloat16 before."""
    for name, dtype in (FLOATS | NARROW).items():
        yield name, partial(kept_in, dtype=dtype)
    yield "TF32", _in_tf32
    for name, dtype in FLOATS.items():
        yield f"{name}, from bfloat16", partial(_by_bfloat16, dtype=dtype)


def in_block_formats() -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Each format with a scale by block of the last axis, with its rounding of float64."""
    for name, kept in block_formats():
        yield name, partial(_by_array, kept=kept)


def _by_array(x: Tensor, kept: Callable[[Any], Any]) -> Tensor:
    return torch.from_numpy(kept(x.numpy()))


def _in_tf32(x: Tensor) -> Tensor:
    """Ten bits behind the point, as a tensor core takes float32: half of the last one away from zero."""
    return ((x.float().view(torch.int32) + (1 << 12)) & -(1 << 13)).view(torch.float32).double()


def _by_bfloat16(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.bfloat16().to(dtype).double()


def in_steps(x: Tensor, most: Tensor, levels: int) -> Tensor:
    """Float64 in whole steps of a scale, so many up to `most` [of x's shape, or 1] and no more: in float32, as a kernel
    has them."""
    step = most.float() / levels
    return ((x.float() / step).round().clamp(-levels, levels) * step).double()


def entered(module: Any, stack: ExitStack) -> list[Tensor]:
    """What enters a module from now on, [rows of a call, D] each."""
    seen: list[Tensor] = []
    stack.enter_context(
        entering(module, lambda x: seen.append(x.detach().flatten(0, -2 if x.is_floating_point() else -1)))
    )
    return seen


def linear(
    module: Any,
    x: Tensor,
    parts: Parts = (),
    others: Others = lambda: iter(()),
    beside: Sequence[tuple[str, Any]] = (),
    called: str = "the bias",
) -> list[Product]:
    """A linear module's product; its bias is one more column.

    Args:
        x: what enters, [R, D].
        parts, others: see `Product`.
        beside: modules that might stand in its place, as (whose, module); those of another shape do not.
        called: what its bias is called.
    """
    named, bias = list(parts), getattr(module, "bias", None)
    if bias is not None:
        named.append((called, x.shape[1], x.shape[1] + 1))

    def whole(x: Tensor) -> Any:
        ones = x.new_ones(len(x), 1 if bias is not None else 0)
        return torch.cat((x, ones), dim=1).double().numpy()

    def weights() -> Iterator[tuple[str, Any]]:
        for whose, one in beside:
            if (other := _with_bias(one)).shape == weight.shape:
                yield whose, other

    weight = _with_bias(module)

    def changed() -> Iterator[tuple[str, Changed]]:
        for says, made in others():
            yield says, partial(_then, made, whole)

    return [Product(whole(x), weight, tuple(named), changed, beside=weights)]


def _then(made: Changed, then: Callable[[Any], Any], rows: Any) -> Any:
    return then(made(rows))


def _with_bias(module: Any) -> Any:
    """A module's weight with its bias as one more column, float32 [C, D]."""
    weight, bias = module.weight.detach(), getattr(module, "bias", None)
    return (weight if bias is None else torch.cat((weight, bias.detach()[:, None]), dim=1)).float().numpy()


def projections(loop: Any, side: str, number: int, *names: str) -> list[tuple[str, Any]]:
    """The first of these projections in the other layers, and the others of them in this one."""
    held = dict(layers_of(loop, side, "all"))
    beside = [(f"{name} of its layer", getattr(held[number].self_attn, name)) for name in names[1:]]
    others = sorted((layer for layer in held if layer != number), key=lambda layer: abs(layer - number))
    return [*beside, *((f"layer {layer}", getattr(held[layer].self_attn, names[0])) for layer in others)]
