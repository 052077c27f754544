"""Forward hooks of torch modules by a table of names: module to stage."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parity.adapters.launches import tapped_parts
from parity.adapters.port import PortTap, Shows
from parity.errors import UsageError

FIELD = re.compile(r"\\\{(\w+)\\\}")


@dataclass(frozen=True)
class Hooked:
    """One row of a table.

    Args:
        stage: what the tensor is.
        part: which of the module's outputs: 0 for a single one or the first, a number, a key.
        takes: the tensor enters the module instead: its first argument.
    """

    stage: str | Shows
    part: int | str = 0
    takes: bool = False


Row = str | Shows | Hooked
Table = Mapping[str, Row | Sequence[Row]]
"""Qualified module name, as `model.layers.{l}.mlp` (or '' for the model), to what it shows, or several such; what
stands for `{l}` in a name is the layer of the stage."""


def hook_modules(port: PortTap, model: Any, table: Table) -> list[Any]:
    """Register a forward hook for every row; the model continues with what the tap returns.

    Args:
        model: a torch.nn.Module.

    Returns:
        the handles; `handle.remove()` takes a hook off.

    Raises:
        UsageError: a row names no module, or no stage.
    """
    names = dict(model.named_modules())
    handles = []
    for name, rows in table.items():
        pattern = re.compile(FIELD.sub(r"(?P<\1>[^.]+)", re.escape(name)))
        matched = [(found, module) for one, module in names.items() if (found := pattern.fullmatch(one))]
        if not matched:
            raise UsageError(f"{name!r} is no module of {type(model).__name__}: its named_modules() lists them")
        plain = [rows] if isinstance(rows, Row) else rows
        hooked = [row if isinstance(row, Hooked) else Hooked(row) for row in plain]
        handles += [_hook(port, module, row, found.groupdict()) for found, module in matched for row in hooked]
    return handles


def _hook(port: PortTap, module: Any, hooked: Hooked, fields: Mapping[str, str]) -> Any:
    shows = port.check(_numbered(hooked.stage, fields))
    if hooked.takes:
        return module.register_forward_pre_hook(_entering(port, shows), with_kwargs=True)
    return module.register_forward_hook(_leaving(port, shows, hooked.part))


def _numbered(stage: str | Shows, fields: Mapping[str, str]) -> Shows:
    """The stage of one module: its layer is known by its name; other fields are the pass's."""
    shows = Shows(stage) if isinstance(stage, str) else stage
    name = shows.stage
    for field, value in fields.items():
        name = name.replace(f"{{{field}}}", value)
    return replace(shows, stage=name)


def _leaving(port: PortTap, shows: Shows, part: int | str) -> Callable[..., Any]:
    def hook(module: Any, args: Any, output: Any) -> Any:
        return tapped_parts(output, {part: lambda value: port.hand(shows, value)})

    return hook


def _entering(port: PortTap, shows: Shows) -> Callable[..., Any]:
    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (port.hand(shows, args[0]), *args[1:]), kwargs
        first = next(iter(kwargs))
        return args, kwargs | {first: port.hand(shows, kwargs[first])}

    return hook
