"""What a norm gives at some rows under small changes: other weights, other sums, another eps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.references.products.norm_changes import Norm, normed, normed_by, variants
from parity.references.products.product import (
    STEPS,
    Changed,
    Made,
    Product,
    entered,
    given,
    linear,
)

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
                ("with what the last layer's MLP adds once more", 2 * x - inside),
                ("with what the last layer's attention adds once more", x + inside - before),
                ("without what the last layer's attention adds", x - inside + before),
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
            for says, by_others in by_other_statistics(x, weight, eps, [len(rows) for rows in seen[calls]]):
                yield says, given(by_others.numpy())
            for name, one, met in beside:
                rows = torch.cat(met[calls]).double() if met[calls] else x[:0]
                if rows.shape == x.shape:
                    normed_rows = normed(rows, one.weight.detach().double(), eps_of(one)).numpy()
                    yield f"the rows that {name} gives", given(normed_rows)

        return [Product(right.numpy(), None, (), changed)]

    return made


def by_other_statistics(x: Tensor, weight: Tensor, eps: float, calls: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """What a norm gives of rows [R, H], of calls of so many rows, by the mean squares of others."""
    inverse = normed_by(x, eps)
    for whose, rows in other_rows(calls):
        yield f"the root mean square of {whose}", x * inverse[rows] * weight
    for whose, runs in together(calls):
        yield f"one mean square over {whose}", x * shared(inverse, eps, runs) * weight


def other_rows(calls: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """Rows whose statistic a norm may take for each of its own, of calls of so many rows, each with what they are."""
    at = torch.cat([torch.arange(rows) for rows in calls])
    own = torch.arange(len(at))
    for step in STEPS:
        for of, where in ((step, "before"), (-step, "behind")):
            yield f"the row {step} {where}", own.roll(of, 0)
    for tile in STEPS[1:]:
        yield f"the first row of its tile of {tile}", own - at % tile
    yield "its pass' first row", own - at


def together(calls: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """Rows that may share a statistic: the run that each is of, of calls of so many rows."""
    at = torch.cat([torch.arange(rows) for rows in calls])
    call = torch.repeat_interleave(torch.arange(len(calls)), torch.tensor(calls))
    yield "the rows of its pass", call
    for tile in STEPS[1:]:
        yield f"the rows of its tile of {tile}", call * len(at) + at // tile


def shared(inverse: Tensor, eps: float, runs: Tensor) -> Tensor:
    """What each row is multiplied by [R, 1] where the rows of a run have one mean square."""
    _, run, count = runs.unique(return_inverse=True, return_counts=True)
    squares = torch.zeros(len(count), 1, dtype=inverse.dtype).index_add(0, run, inverse**-2 - eps)
    inverses: Tensor = (squares / count[:, None] + eps).rsqrt()[run]
    return inverses


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
