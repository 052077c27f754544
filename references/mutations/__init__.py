"""How the references are changed under a hypothesis, and changed back.

Every mutation is a function of (loop, value, …) that returns a context manager. They nest: a later one wraps
what an earlier one left, and each puts back exactly what it found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch


class NotApplicable(Exception):
    """This pair of checkpoints, or what else is assumed, gives the hypothesis nothing to change."""

    skip = True


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another attribute of an object or module."""
    own, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before) if own else delattr(owner, name)


def wrapped(owner: Any, name: str, around: Callable) -> AbstractContextManager:
    """A method `name` that is `around(method, …)` from now on."""
    return replaced(owner, name, partial(around, getattr(owner, name)))


@contextmanager
def reweighted(tensor: torch.Tensor, value: torch.Tensor) -> Iterator[None]:
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
def together(contexts: Iterable[AbstractContextManager]) -> Iterator[None]:
    """Several mutations as one.

    Raises:
        NotApplicable: there is none.
    """
    with ExitStack() as stack:
        count = 0
        for count, context in enumerate(contexts, 1):
            stack.enter_context(context)
        if not count:
            raise NotApplicable("no layer that it could concern")
        yield


def chosen(layers: Iterable[int], value: Any) -> list[int]:
    """Which of these layer numbers a value means: all, even, odd, or one number.

    Raises:
        NotApplicable: none of them.
    """
    known = {"all": lambda l: True, "even": lambda l: l % 2 == 0, "odd": lambda l: l % 2 == 1}
    wanted = known.get(value, lambda l: l == value)
    found = [layer for layer in layers if wanted(layer)]
    if not found:
        raise NotApplicable(f"layer {value} is not among those it could concern")
    return found


def target_layers(loop: Any, value: Any = "all") -> list[tuple[int, torch.nn.Module]]:
    """(number, layer) of the target's layers that a value means."""
    layers = loop.target.model.model.layers
    return [(number, layers[number]) for number in chosen(range(len(layers)), value)]


def drafter_layers(loop: Any, value: Any = "all") -> list[tuple[int, torch.nn.Module]]:
    """(number, layer) of the drafter's layers that a value means."""
    layers = [loop.drafter.midlayer, *loop.drafter.layers.values()]
    return [(number, layers[number]) for number in chosen(range(len(layers)), value)]


def layers_of(loop: Any, side: str, value: Any = "all") -> list[tuple[int, torch.nn.Module]]:
    """(number, layer) of one side's layers that a value means."""
    return target_layers(loop, value) if side == "target" else drafter_layers(loop, value)


def rows_from(rows: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """`count` rows from `start` on. Those outside `rows` are NaN: what a device reads there, a hypothesis cannot tell."""
    places = torch.arange(start, start + count)
    inside = ((places >= 0) & (places < len(rows)))[(..., *(None,) * (rows.ndim - 1))]
    return torch.where(inside, rows[places.clamp(0, len(rows) - 1)], float("nan"))


@contextmanager
def changed(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """A parameter or buffer with `change` applied to the contents that it has on entry."""
    with reweighted(tensor, change(tensor.data)):
        yield
