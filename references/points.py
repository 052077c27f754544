"""Mutation points: the methods of the references that a hypothesis may replace for a while.

A class declares one with `@point`. It is called like any method, and

    with loop.matched.around(lambda matched, drafts, tokens: matched(drafts, tokens) + 1):
        ...

puts another function in its place on this one object. Contexts nest: a later one wraps what an earlier one left, and
each restores what it found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, eq=False, repr=False)
class Point(Generic[P, R]):
    """The function that `owner` has under `name`."""

    owner: object
    name: str
    call: Callable[P, R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.call(*args, **kwargs)

    @contextmanager
    def around(self, change: Callable[..., R]) -> Iterator[None]:
        """In the context `change(inner, …)` computes what the function computes, `inner` being what it was."""
        inner = getattr(self.owner, self.name)
        with replaced(self.owner, self.name, Point(self.owner, self.name, partial(change, inner))):
            yield


class point(Generic[P, R]):
    """Declare a method as a mutation point."""

    def __init__(self, function: Callable[Concatenate[Any, P], R]):
        self.function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...

    @overload
    def __get__(self, owner: object, kind: type) -> Point[P, R]: ...

    def __get__(self, owner: object | None, kind: type) -> Self | Point[P, R]:
        return self if owner is None else Point(owner, self.name, partial(self.function, owner))


def foreign(owner: object, name: str) -> Point[..., Any]:
    """A function of another library that cannot be declared: a module's `forward`, or a name in a Python module."""
    return Point(owner, name, getattr(owner, name))


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Another attribute of an object or module."""
    own, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before) if own else delattr(owner, name)
