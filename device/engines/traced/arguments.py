"""Nested arguments as a flat list of arrays and a skeleton that can be compared: a tracer takes named arrays only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any


@dataclass(frozen=True)
class Hole:
    """Where an array was."""


@dataclass(frozen=True)
class Static:
    """A value without arrays; `kind` beside it, because 1, 1.0 and True are equal."""

    kind: type
    value: Any


@dataclass(frozen=True)
class Node:
    """A tuple or list (no names), a dict (its keys) or a dataclass (its fields)."""

    kind: type
    names: tuple[Any, ...] | None
    children: tuple[Skeleton, ...]


Skeleton = Hole | Static | Node


def split(value: Any, array: type | tuple[type, ...], path: str = "") -> tuple[Skeleton, list[tuple[str, Any]]]:
    """Take the arrays out of tuples, lists, dicts and dataclasses.

    Returns:
        the skeleton, hashable, and each array with its path, in order.

    Raises:
        TypeError: a value that holds no array and cannot be hashed.
    """
    if isinstance(value, array):
        return Hole(), [(path, value)]
    kind: type
    names: tuple[Any, ...] | None
    if isinstance(value, tuple | list):
        kind, names, values = type(value), None, list(value)
    elif isinstance(value, dict):
        kind, names, values = dict, tuple(value), list(value.values())
    elif is_dataclass(value) and not isinstance(value, type):
        kind, names = type(value), tuple(one.name for one in fields(value))
        values = [getattr(value, name) for name in names]
    else:
        return _static(value), []
    labels = range(len(values)) if names is None else names
    parts = [split(one, array, f"{path}_{label}".lstrip("_")) for label, one in zip(labels, values, strict=True)]
    leaves = [leaf for _, some in parts for leaf in some]
    if is_dataclass(value) and not leaves:
        return _static(value), []
    return Node(kind, names, tuple(skeleton for skeleton, _ in parts)), leaves


def join(skeleton: Skeleton, arrays: Iterator[Any]) -> Any:
    """The inverse of `split`: these arrays in the holes."""
    if isinstance(skeleton, Hole):
        return next(arrays)
    if isinstance(skeleton, Static):
        return skeleton.value
    values = [join(child, arrays) for child in skeleton.children]
    if skeleton.names is None:
        return skeleton.kind(values)
    named = dict(zip(skeleton.names, values, strict=True))
    return named if skeleton.kind is dict else skeleton.kind(**named)


def _static(value: Any) -> Static:
    hash(value)
    return Static(type(value), value)
