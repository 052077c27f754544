"""Options behind a device's name, in the types that its factory's signature asks for."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from inspect import Parameter, signature, unwrap
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from parity.errors import UsageError

WHOLE = ("max_positions", "batch", "tp")
"""Parameters that the contract of a factory makes whole numbers, whether or not the signature says so."""
_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise ValueError
    return int(text)


READERS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    int: ("a whole number", _whole),
    float: ("a number", float),
    bool: ("true or false", lambda text: _FLAGS[text.lower()]),
    Path: ("a path", Path),
    NoneType: ("none", lambda text: {"none": None}[text.lower()]),
}
"""By type: what it reads in words, and how. Any other type, `str` among them, takes the text."""
_BY_NAME = {kind.__name__: kind for kind in (*READERS, str)} | {"None": NoneType}


def read_option(device: str, make: Callable[..., Any], option: str, text: str) -> Any:
    """The value of one option: of several types that the factory takes, the first that reads the text.

    Raises:
        UsageError: none does.
    """
    said = []
    for kind in _types(make, option):
        what, read = _literal(kind) if get_origin(kind) is Literal else READERS.get(kind, ("text", str))
        try:
            return read(text)
        except (ValueError, KeyError):
            said.append(what)
    raise UsageError(f"--device {device}: {option}={text}: its factory takes {' or '.join(said)} there")


def takes(make: Callable[..., Any], option: str) -> bool:
    """Whether a factory has this parameter, by name or among its keywords."""
    known = signature(make).parameters
    return option in known or any(one.kind is Parameter.VAR_KEYWORD for one in known.values())


def _types(make: Callable[..., Any], option: str) -> list[Any]:
    """The types of a parameter: its annotation's, else its default's, else the contract's, else text."""
    known = signature(make).parameters
    keywords = (one for one in known.values() if one.kind is Parameter.VAR_KEYWORD)
    parameter = known.get(option) or next(keywords)
    annotation = _evaluated(parameter.annotation, make)
    if annotation not in (Parameter.empty, Any, "Any"):
        return list(_members(annotation)) or [str]
    if parameter.default not in (Parameter.empty, None):
        return [type(parameter.default)]
    return [int if option in WHOLE else str]


def _evaluated(annotation: Any, make: Callable[..., Any]) -> Any:
    """An annotation that is kept as text, in the names of its module; itself where those do not have all of it."""
    while isinstance(make, partial):
        make = make.func
    module = sys.modules.get(getattr(unwrap(make), "__module__", None) or "")
    try:
        return eval(annotation, vars(module)) if isinstance(annotation, str) and module else annotation
    except Exception:  # it may name what only a type checker imports
        return annotation


def _members(annotation: Any) -> Iterator[Any]:
    """The types that an annotation allows, in its order; of one that could not be evaluated those known by name."""
    if isinstance(annotation, str):
        yield from (_BY_NAME[name] for name in re.findall(r"\w+", annotation) if name in _BY_NAME)
    elif get_origin(annotation) in (Union, UnionType):
        for one in get_args(annotation):
            yield from _members(one)
    else:
        yield annotation


def _literal(kind: Any) -> tuple[str, Callable[[str], Any]]:
    """A choice among words: the one that is written like the text."""
    words = {str(value): value for value in get_args(kind)}
    return ", ".join(words), words.__getitem__
