"""Kernel launches: a function whose arguments and results are tensors that have names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import update_wrapper
from inspect import Signature, signature
from typing import TYPE_CHECKING, Any

from parity.errors import UsageError

if TYPE_CHECKING:
    from parity.adapters.port import PortTap, Shows

Place = int | str
Given = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a launch, by place and by name."""


class Launch:
    """A function with its tensors tapped; attributes are the function's."""

    def __init__(
        self,
        port: PortTap,
        function: Callable[..., Any],
        returns: Mapping[Place, Shows],
        takes: Mapping[Place, Shows],
        writes: Mapping[Place, Shows],
    ):
        update_wrapper(self, function)
        self.function = function
        self._port, self._returns, self._takes, self._writes = port, returns, takes, writes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; the tensors go on as the tap returns them."""
        port, call = self._port, _Call(self.function, args, kwargs)
        for place, shows in self._takes.items():
            call.put(place, port.hand(shows, call.get(place), call.given))
        result = self.function(*call.args, **call.kwargs)
        for place, shows in self._writes.items():
            port.hand(shows, call.get(place), call.given, overwrites=True)
        return tapped_parts(result, {place: self._handed(shows, call.given) for place, shows in self._returns.items()})

    def _handed(self, shows: Shows, given: Given) -> Callable[[Any], Any]:
        return lambda value: self._port.hand(shows, value, given)

    def as_attribute(self) -> Callable[..., Any]:
        """As a plain function, which a class binds to its instances."""
        return update_wrapper(lambda *args, **kwargs: self(*args, **kwargs), self.function)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["function"], name)


def tapped_parts(result: Any, taps: Mapping[Place, Callable[[Any], Any]]) -> Any:
    """A result of the same kind, with what `taps` make of its parts; 0 is a single value, or the first of several."""
    if not taps:
        return result
    if isinstance(result, Mapping):
        for place, tap in taps.items():
            result[place] = tap(result[place])  # type: ignore[index]
        return result
    if not isinstance(result, tuple | list):
        if list(taps) != [0]:
            raise UsageError(f"value {next(place for place in taps if place != 0)!r} of a single one was to be tapped")
        return taps[0](result)
    parts = list(result)
    for place, tap in taps.items():
        if not isinstance(place, int) or place >= len(parts):
            raise UsageError(f"value {place!r} of {len(parts)} returned ones was to be tapped")
        parts[place] = tap(parts[place])
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*parts)
    return type(result)(parts)


class _Call:
    """The arguments of one call, by number, name or dotted name."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.function, self.args, self.kwargs = function, list(args), dict(kwargs)
        self.given = args, kwargs

    def get(self, place: Place) -> Any:
        """An argument."""
        holder, key = self._slot(place)
        return holder[key]

    def put(self, place: Place, value: Any) -> None:
        """Call with another one; the caller's own dict stays as it is."""
        holder, key = self._slot(place)
        if holder[key] is value:
            return
        if isinstance(place, str) and "." in place and holder is not self.kwargs:
            whole, whole_key = self._slot(place.partition(".")[0])
            whole[whole_key] = holder = dict(holder)
        holder[key] = value

    def _slot(self, place: Place) -> tuple[Any, Any]:
        """What holds an argument, and under which key."""
        name, dot, key = (place, "", "") if isinstance(place, int) else place.partition(".")
        if isinstance(name, int) or name not in self.kwargs:
            number = name if isinstance(name, int) else self._number(name)
            if number >= len(self.args):
                raise UsageError(f"argument {place!r} was to be tapped, and is not given")
            holder: Any = self.args
            slot: Any = number
        else:
            holder, slot = self.kwargs, name
        return (holder[slot], key) if dot else (holder, slot)

    def _number(self, name: str) -> int:
        try:
            names = list(_signature(self.function).parameters)
        except (TypeError, ValueError):
            names = []
        if name not in names:
            raise UsageError(f"argument {name!r} was to be tapped, and there is none of that name")
        return names.index(name)


def _signature(function: Callable[..., Any]) -> Signature:
    return signature(function)
