"""How the references are changed under a hypothesis, and changed back.

Mutations are context managers. They nest: a later one wraps what an earlier one left, and each restores what it found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from parity.references.hypotheses.catalogue import Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch

Layer = Any
"""A layer of either model: transformers declares no types for the modules in one."""

Layers = int | str | tuple[int, ...]
"""A number of a layer, several numbers, or "all", "even" or "odd" ones."""


class NotApplicable(Exception):
    """This pair of checkpoints, or what else is assumed, gives the hypothesis nothing to change."""

    skip = True


@contextmanager
def reweighted(tensor: Tensor, value: Tensor) -> Iterator[None]:
    """Other contents of a parameter or buffer.

    Raises:
        NotApplicable: another shape, or the same contents.
    """
    before = tensor.data
    if value.shape != before.shape:
        raise NotApplicable(f"shape {tuple(value.shape)} instead of {tuple(before.shape)}")
    if torch.equal(value, before):
        raise NotApplicable("the weights stay what they are")
    tensor.data = value.to(before.dtype).contiguous()
    try:
        yield
    finally:
        tensor.data = before


@contextmanager
def changed(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """A parameter or buffer with `change` applied to the contents that it has on entry."""
    with reweighted(tensor, change(tensor.data)):
        yield


def exchanged(one: Tensor, other: Tensor) -> Mutation:
    """Two parameters with each other's contents."""
    return together((reweighted(one, other.data), reweighted(other, one.data)))


@contextmanager
def together(contexts: Iterable[Mutation]) -> Iterator[None]:
    """Several mutations as one.

    Raises:
        NotApplicable: there is none.
    """
    contexts = list(contexts)
    if not contexts:
        raise NotApplicable("no layer that it could concern")
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


@contextmanager
def entering(module: Layer, see: Callable[[Tensor], None]) -> Iterator[None]:
    """`see(x)` is shown what a module is given."""

    def hook(module: Layer, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        see(args[0] if args else kwargs["hidden_states"])

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def leaving(module: Layer, change: Callable[[Any], Any]) -> Iterator[None]:
    """`change(output)` of what a module and its earlier hooks made; None leaves it."""
    handle = module.register_forward_hook(lambda module, args, output: change(output))
    try:
        yield
    finally:
        handle.remove()


def chosen(layers: Iterable[int], value: Layers) -> list[int]:
    """Which of these layer numbers a value means: all, even, odd, one number, or several.

    Raises:
        NotApplicable: none of them.
    """
    parity = {"all": (0, 1), "even": (0,), "odd": (1,)}
    if isinstance(value, str):
        wanted = [layer for layer in layers if layer % 2 in parity[value]]
    else:
        wanted = [layer for layer in layers if layer in (value if isinstance(value, tuple) else (value,))]
    if not wanted:
        raise NotApplicable(f"layer {value} is not among those it could concern")
    return wanted


def target_layers(loop: Loop, value: Layers = "all") -> list[tuple[int, Layer]]:
    """(number, layer) of the target's layers that a value means."""
    layers = loop.target.model.model.layers
    return [(number, layers[number]) for number in chosen(range(len(layers)), value)]


def drafter_layers(loop: Loop, value: Layers = "all") -> list[tuple[int, Layer]]:
    """(number, layer) of the drafter's layers that a value means."""
    layers = loop.drafter.stack
    return [(number, layers[number]) for number in chosen(range(len(layers)), value)]


def layers_of(loop: Loop, side: str, value: Layers = "all") -> list[tuple[int, Layer]]:
    """(number, layer) of one side's layers that a value means."""
    return target_layers(loop, value) if side == "target" else drafter_layers(loop, value)


def mlps(loop: Loop, value: Layers = "all") -> list[Layer]:
    """The target's MLPs, of the layers that a value means."""
    return [layer.mlp for _, layer in target_layers(loop, value)]


def head_counts(loop: Loop, side: str) -> tuple[int, int]:
    """N and G of a side."""
    if side == "target":
        return loop.target.config.num_attention_heads, loop.target.config.num_key_value_heads
    return loop.drafter.config.num_heads, loop.drafter.config.num_kv_heads


def head_of(loop: Loop, side: str) -> Layer:
    """The language model head of a side."""
    return loop.target.model.lm_head if side == "target" else loop.drafter.lm_head


def weighted(loop: Loop) -> Layer:
    """The drafter.

    Raises:
        NotApplicable: it has no weights.
    """
    if not loop.drafter.stack:
        raise NotApplicable("the drafter has no weights")
    return loop.drafter


def drafts_ids(loop: Loop) -> Tensor:
    """The target ids that the rows of the drafter's head stand for."""
    ids: Tensor = loop.drafter.to_target(torch.arange(len(loop.drafter.lm_head.weight)))
    return ids


def hidden_norm_of(loop: Loop) -> Layer:
    """The norm of what comes out of `fc`: in the fusion layer, or in front of all layers.

    Raises:
        NotApplicable: there is none.
    """
    holder = getattr(loop.drafter, "midlayer", loop.drafter)
    norm = getattr(holder, "hidden_norm", None)
    if norm is None:
        raise NotApplicable("no hidden norm")
    return norm


def rows_from(rows: Tensor, start: int, count: int) -> Tensor:
    """`count` rows from `start` on. Those outside `rows` are NaN: no equation says what a device reads there."""
    if not len(rows):
        return rows.new_full((count, *rows.shape[1:]), float("nan"))
    places = torch.arange(start, start + count)
    inside = ((places >= 0) & (places < len(rows)))[(..., *(None,) * (rows.ndim - 1))]
    return torch.where(inside, rows[places.clamp(0, len(rows) - 1)], float("nan"))
