"""What a norm gives at some rows under small changes: other weights, other sums, another eps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.references.products.product import (
    FLOATS,
    NARROW,
    STEPS,
    Changed,
    Made,
    Product,
    entered,
    given,
    kept_in,
    linear,
)

Norm = Callable[[Tensor], Tensor]

TILE, MOST = 16, 64
"""Columns behind whose multiples a sum of squares may end, and about how many of these are tried."""

SHARDS = (2, 3, 4, 8)
"""Ranks, cores or tiles among which the columns of a row may lie."""

PADDED = (64, 128, 256, 512, 1024)
"""Columns of a tile that a row may be padded to."""


def variants(weight: Tensor, eps: float, others: Sequence[tuple[str, Tensor]]) -> Iterator[tuple[str, Norm]]:
    """Each with what it says.

    Args:
        weight: of the norm, float64 [H].
        others: weights of other norms of the same size, by name.
    """

    ones = torch.ones_like(weight)
    changes: dict[str, Norm] = {
        "the norm without its weight": partial(normed, by=ones, eps=eps),
        "the norm's weight and one": partial(normed, by=weight + 1, eps=eps),
        "no norm": lambda x: x,
        "no norm but its weight": lambda x: x * weight,
        "the norm twice": lambda x: normed(normed(x, weight, eps), weight, eps),
        "a norm that takes the mean away": lambda x: normed(x - x.mean(-1, keepdim=True), weight, eps),
    }
    for factor in (0.01, 0.1, 10.0, 100.0):
        changes[f"the norm's eps {factor:g} times as large"] = partial(normed, by=weight, eps=eps * factor)
    changes["the norm's eps added behind the root"] = partial(_behind_root, by=weight, eps=eps)
    changes["no eps"] = partial(normed, by=weight, eps=0.0)
    changes["the sum of squares for their mean"] = partial(
        normed, by=weight / len(weight) ** 0.5, eps=eps / len(weight)
    )
    for more, says in ((-1, "one fewer"), (1, "one more")):
        times = (1 + more / len(weight)) ** 0.5
        by, larger = weight * times, eps * times**2
        changes[f"the squares divided by {says} than there are"] = partial(normed, by=by, eps=larger)
    for tile in PADDED:
        width = -(-len(weight) // tile) * tile
        if width > len(weight):
            by = weight * (width / len(weight)) ** 0.5
            changes[f"the mean square over {width} columns, {width - len(weight)} of them zeros"] = partial(
                normed, by=by, eps=eps * width / len(weight)
            )
    for shards in SHARDS:
        if len(weight) % shards == 0:
            changes[f"the mean of the roots of {shards} shards' mean squares"] = partial(
                _mean_of_roots, by=weight, eps=eps, shards=shards
            )
            changes[f"the mean square of each of {shards} shards of the columns alone"] = partial(
                _sharded, by=weight, eps=eps, shards=shards
            )
    for name, other in others:
        changes[f"the weight of {name}"] = partial(normed, by=other, eps=eps)
    for name, dtype in FLOATS.items():
        changes[f"the norm's weight in fp8 ({name})"] = partial(normed, by=weight.to(dtype).double(), eps=eps)
    for name, dtype in NARROW.items():
        changes |= _narrow(name, partial(kept_in, dtype=dtype), weight, eps)
    for last in range(TILE, len(weight), max(TILE, len(weight) // MOST // TILE * TILE)):
        changes[f"the mean square of the first {last} columns"] = partial(normed, by=weight, eps=eps, last=last)
        changes[f"the squares of columns from {last} on counted twice"] = partial(
            _twice, by=weight, eps=eps, first=last
        )
        wider = (len(weight) / last) ** 0.5  # the sum of fewer squares, divided by all columns
        changes[f"the squares of columns from {last} on are not read"] = partial(
            normed, by=weight * wider, eps=eps * wider**2, last=last
        )
    yield from changes.items()


def _twice(x: Tensor, by: Tensor, eps: float, first: int) -> Tensor:
    more = x[:, first:].square().sum(-1, keepdim=True) / x.shape[1]
    return _by(x, x.square().mean(-1, keepdim=True) + more, by, eps)


def _sharded(x: Tensor, by: Tensor, eps: float, shards: int) -> Tensor:
    each = x.unflatten(-1, (shards, -1))
    normed_shards: Tensor = each * torch.rsqrt(each.square().mean(-1, keepdim=True) + eps)
    return normed_shards.flatten(-2) * by


def _mean_of_roots(x: Tensor, by: Tensor, eps: float, shards: int) -> Tensor:
    each = x.unflatten(-1, (shards, -1)).square().mean(-1) + eps
    root: Tensor = each.sqrt().mean(-1, keepdim=True)
    return x / root * by


def _behind_root(x: Tensor, by: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * by


def _narrow(name: str, low: Norm, weight: Tensor, eps: float) -> dict[str, Norm]:
    """One step of the norm after another in fewer bits."""
    ones = torch.ones_like(weight)
    return {
        f"the norm's input in {name}": lambda x: normed(low(x), weight, eps),
        f"the norm's squares in {name}": lambda x: _by(x, low(x.square()).mean(-1, True), weight, eps),
        f"the norm's squares added one by one in {name}": lambda x: _by(x, _one_by_one(x, low), weight, eps),
        f"the norm's mean square in {name}": lambda x: _by(x, low(x.square().mean(-1, True)), weight, eps),
        f"the norm's inverse root in {name}": lambda x: x * low(normed_by(x, eps)) * weight,
        f"the normed rows in {name} before the weight": lambda x: low(normed(x, ones, eps)) * weight,
    }


def _one_by_one(x: Tensor, low: Norm) -> Tensor:
    """Mean squares [R, 1] whose sum, and each square, is rounded behind every column."""
    total = torch.zeros_like(x[:, 0])
    for column in low(x.square()).unbind(1):
        total = low(total + column)
    return total[:, None] / x.shape[1]


def _by(x: Tensor, square: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(square + eps) * weight


def normed(x: Tensor, by: Tensor, eps: float, last: int | None = None) -> Tensor:
    """Rows [R, H] by their root mean square, of the first columns alone where so many are said, and a weight."""
    return x * normed_by(x[:, :last], eps) * by


def normed_by(x: Tensor, eps: float) -> Tensor:
    """What a norm multiplies rows [R, H] by before their weight: the inverse of the root mean square, [R, 1]."""
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


TIMES = (0.25, 0.5, 0.5**0.5, 0.8, 0.9, 1.1, 1.25, 2**0.5, 2.0, -1.0)
"""How often what was added to a stream may count."""


def _streams(before: Tensor, behind: Tensor, bias: Tensor | None) -> Iterator[tuple[str, Tensor]]:
    """Other streams [R, H] than that behind attention, by the one before it, each with what it says."""
    yield "the stream without what attention added", before
    yield "what attention added, alone", behind - before
    for times in TIMES:
        yield f"the stream with {times:.4g} times what attention added", before + times * (behind - before)
    if bias is not None:
        yield "the stream without attention's output bias", behind - bias
        yield "the stream with attention's output bias twice", behind + bias


def behind_attention(layer: Any, others: Sequence[tuple[str, Any]], stack: ExitStack) -> Made:
    """The rows that a layer's second norm gives, and what they would be: as `of_norm` has it, or of other streams."""
    norm, plain = layer.post_attention_layernorm, of_norm(layer.post_attention_layernorm, others, stack)
    first = getattr(layer, "hidden_norm", layer.input_layernorm)  # of one that fuses the other takes the embedding
    behind, before = entered(norm, stack), entered(first, stack)
    kept = of_module(first) if getattr(layer, "norm_before_residual", False) else torch.Tensor.double

    def made() -> list[Product]:
        (product,), x, change = plain(), torch.cat(behind).double(), of_module(norm)
        held = getattr(layer.self_attn.o_proj, "bias", None)
        bias = None if held is None else held.detach().double()

        def changed() -> Iterator[tuple[str, Changed]]:
            yield from product.others()
            stream = kept(torch.cat(before).double())
            for says, other in _streams(stream, x, bias) if stream.shape == x.shape else ():
                yield f"the norm of {says}", given(change(other).numpy())

        return [replace(product, others=changed)]

    return made


def behind_layers(
    norm: Any,
    others: Sequence[tuple[str, Any]],
    streams: Sequence[Tensor],
    halfway: Sequence[Tensor],
    stack: ExitStack,
) -> Made:
    """The rows that the final norm gives, and what they would be: as `of_norm` has it, or of the stream before the last
    layer, or before its MLP, beside its own.

    Args:
        streams: what enters the last layer, call by call; the norm takes the last rows of each.
        halfway: what enters the norm before its MLP, likewise.
    """
    plain, behind = of_norm(norm, others, stack), entered(norm, stack)

    def made() -> list[Product]:
        (product,), change = plain(), of_module(norm)

        def changed() -> Iterator[tuple[str, Changed]]:
            yield from product.others()
            before, inside = (_rows_of(those, behind) for those in (streams, halfway))
            x = torch.cat(behind).double()
            for says, other in (
                ("with the last layer's input once more", x + before),
                ("before the last layer", before),
                ("without what the last layer's MLP adds", inside),
            ):
                yield f"the norm of the stream {says}", given(change(other).numpy())

        return [replace(product, others=changed)]

    return made


def _rows_of(streams: Sequence[Tensor], behind: Sequence[Tensor]) -> Tensor:
    """The rows of a stream [R, H] that the norm takes behind it; a drafter's prefill has no head."""
    last = streams[len(streams) - len(behind) :]
    return torch.cat([one[-len(rows) :] for one, rows in zip(last, behind, strict=True)]).double()


def of_norm(module: Any, others: Sequence[tuple[str, Any]], stack: ExitStack, calls: slice = slice(None)) -> Made:
    """The rows that a norm gives, and what they would be: by other norms' weights, or the rows of these themselves."""
    seen, beside = entered(module, stack), [(name, one, entered(one, stack)) for name, one in others]

    def made() -> list[Product]:
        x, weight, eps = torch.cat(seen[calls]).double(), module.weight.detach().double(), eps_of(module)
        right = normed(x, weight, eps)
        weights = [(name, one.weight.detach().double()) for name, one, _ in beside if one.weight.shape == weight.shape]

        def changed() -> Iterator[tuple[str, Changed]]:
            for says, variant in variants(weight, eps, weights):
                yield says, partial(_of_rows, variant, x)
            inverse = normed_by(x, eps)
            for whose, rows in _other_rows([len(rows) for rows in seen[calls]]):
                yield f"the root mean square of {whose}", given((x * inverse[rows] * weight).numpy())
            for name, one, met in beside:
                rows = torch.cat(met[calls]).double() if met[calls] else x[:0]
                if rows.shape == x.shape:
                    normed_rows = normed(rows, one.weight.detach().double(), eps_of(one)).numpy()
                    yield f"the rows that {name} gives", given(normed_rows)

        return [Product(right.numpy(), None, (), changed)]

    return made


def _other_rows(calls: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """Rows whose statistic a norm may take for each of its own, of calls of so many rows, each with what they are."""
    at = torch.cat([torch.arange(rows) for rows in calls])
    own = torch.arange(len(at))
    for step in STEPS:
        for of, where in ((step, "before"), (-step, "behind")):
            yield f"the row {step} {where}", own.roll(of, 0)
    for tile in STEPS[1:]:
        yield f"the first row of its tile of {tile}", own - at % tile
    yield "its pass' first row", own - at


def _of_rows(norm: Norm, x: Tensor, rows: Any) -> Any:
    return norm(x[rows]).numpy()


def behind_norm(
    module: Any,
    of_rows: Made,
    stack: ExitStack,
    calls: slice = slice(None),
    beside: Sequence[tuple[str, Any]] = (),
) -> Made:
    """A product of what a norm gives, and what it would be under another norm or of the row beside.

    Args:
        of_rows: makes the norm's rows, with what they would be.
        calls: those of the run's calls whose rows the stage has.
        beside: modules whose weight might stand in the product's, by name.
    """
    seen = entered(module, stack)

    def made() -> list[Product]:
        (before,), x = of_rows(), torch.cat(seen[calls])

        def changed() -> Iterator[tuple[str, Changed]]:
            yield "the row before", given(x.roll(1, 0))
            yield "the row behind", given(x.roll(-1, 0))
            yield from ((says, partial(_as_tensor, other)) for says, other in before.others())

        return linear(module, x, (), changed, beside)

    return made


def _as_tensor(made: Changed, rows: Any) -> Tensor:
    return torch.from_numpy(made(rows))


def weight_and_eps(module: Any) -> tuple[Tensor, float]:
    """A norm's weight, float64 [H], and its eps."""
    return module.weight.detach().double(), eps_of(module)


def of_module(module: Any) -> Norm:
    """What a norm makes of rows, in float64."""
    weight, eps = weight_and_eps(module)
    return partial(normed, by=weight, eps=eps)


def eps_of(module: Any) -> float:
    """A norm's eps, under either name."""
    return float(module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps)
