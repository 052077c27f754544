"""What tensor-parallel ranks say to each other; the array's class knows how, and how many ranks there are.

Every rank runs the same kernels on its own share of the weights. With one rank both return their argument. Where a
foreign tracer makes the arrays, whoever traces says how they meet (`meeting`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias

Groups: TypeAlias = tuple[tuple[int, ...], ...] | None
"""The ranks that meet, each in one group; None for all ranks in their order."""


class Meeting(Protocol):
    """How arrays under a trace meet."""

    def all_reduce(self, x: Any, groups: Groups) -> Any:
        """As the function."""
        ...

    def all_gather(self, x: Any, axis: int, groups: Groups) -> Any:
        """As the function; `axis` may count from the end."""
        ...


_traced: ContextVar[Meeting | None] = ContextVar("how arrays under a trace meet", default=None)


@contextmanager
def meeting(how: Meeting | None) -> Iterator[None]:
    """Arrays whose class knows of no ranks meet so, in this thread."""
    before = _traced.set(how)
    try:
        yield
    finally:
        _traced.reset(before)


def all_reduce(x: Any, groups: Groups = None) -> Any:
    """The sum of every rank's x, on every rank of a group; partial sums come in float32."""
    if hasattr(type(x), "all_reduce"):
        return x.all_reduce(groups)
    among = _traced.get()
    return x if among is None else among.all_reduce(x, groups)


def all_gather(x: Any, axis: int, groups: Groups = None) -> Any:
    """Every rank's x side by side along `axis`, in the order of its group, on every rank of it."""
    if hasattr(type(x), "all_gather"):
        return x.all_gather(axis, groups)
    among = _traced.get()
    return x if among is None else among.all_gather(x, axis, groups)
