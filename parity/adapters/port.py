"""A port's tap: what stands between a port's kernels, modules and host code and the tap that a verb is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from string import Formatter
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from parity.adapters.convert import overwrite, replaced, to_numpy
from parity.adapters.launches import Given, Launch
from parity.adapters.logical import Logical, Rows
from parity.errors import UsageError
from parity.seam import Side, Tap
from parity.stages import Named, declared, matches

ALL: Mapping[str, Rows] = MappingProxyType({})


@dataclass(frozen=True)
class Shows:
    """Which stage a tensor is, where its plain name does not say enough.

    Args:
        stage: full name with fields in braces: `{l}` is the layer, counted up by each tensor that comes under this
            name in a pass; any other is a field of the pass (`PortTap.begin`).
        axes: letters of the port's axes, as `B G S D`; see `parity.adapters.logical`.
        layer: the layer out of the arguments of a launched function, where counting does not give it.
        only: says of the arguments whether this launch is meant, where a function is launched for more than the stage.
    """

    stage: str
    axes: str = ""
    layer: Callable[..., int] | None = None
    only: Callable[..., bool] | None = None


class PortTap:
    """Hands a port's tensors to the tap of the running verb under their stages' names; nothing where none runs.

    Args:
        num_layers: L of the target.
        num_drafter_layers: L of the drafter.
    """

    def __init__(self, num_layers: int, num_drafter_layers: int):
        self._names = declared(num_layers, num_drafter_layers)
        self._templates = {named.stage.template for named in self._names.values()}
        self._tap: Tap | None = None
        self._when = ""
        self._rows: dict[str, Rows] = {}
        self._fields: dict[str, Any] = {}
        self._counts: Counter[str] = Counter()
        self._places: list[tuple[Any, str, Launch]] = []

    @contextmanager
    def during(
        self, tap: Tap | None, when: Literal["prefill", "round"], rows: Mapping[str, Rows] = ALL, **fields: Any
    ) -> Iterator[PortTap]:
        """While a verb runs: its tap takes the tensors, what `at` named is launched through it, a first pass begins.

        Args:
            tap: None where nobody watches, as while a port warms up.
            when: stages that are not in this kind of round are not handed over.
            rows, fields: see `begin`.
        """
        before = self._tap, self._when, self._rows, self._fields, self._counts
        with ExitStack() as stack:
            for owner, name, launch in self._places:
                stack.enter_context(_in_place(owner, name, launch))
            self._tap, self._when = tap, when
            self.begin(rows, **fields)
            try:
                yield self
            finally:
                self._tap, self._when, self._rows, self._fields, self._counts = before

    def begin(self, rows: Mapping[str, Rows] = ALL, **fields: Any) -> None:
        """A pass begins: layers are counted from 0.

        Args:
            rows: stage glob to which rows of its tensors are logical (a number: the first ones); the first glob that
                matches counts, all rows where none does.
            fields: what stands for the other braces in stages' names, as `head="verify"` for `{head}.logits`.
        """
        self._rows, self._fields, self._counts = dict(rows), fields, Counter()

    def launch(
        self,
        function: Callable[..., Any],
        returns: str | Shows | Mapping[int | str, str | Shows] = MappingProxyType({}),
        takes: Mapping[int | str, str | Shows] = MappingProxyType({}),
        writes: Mapping[int | str, str | Shows] = MappingProxyType({}),
    ) -> Launch:
        """The function, its tensors tapped: a kernel, a jitted function, a method.

        Args:
            returns: number (or key) of a returned value to its stage; a stage alone where one value is returned, or
                the first of several is meant.
            takes: argument to its stage: the function is called with what the tap returns.
            writes: argument that it writes in place to its stage: what the tap returns is written over it.

            An argument goes by its number or name, one inside a dict by a dotted name: `outputs.output0`.

        Raises:
            UsageError: a name is no stage's.
        """
        plain = {0: returns} if isinstance(returns, str | Shows) else returns
        parts = [{place: self.check(one) for place, one in part.items()} for part in (plain, takes, writes)]
        return Launch(self, function, *parts)

    def at(self, owner: Any, name: str, **tapped: Any) -> None:
        """Launch `owner.name` through the tap while a verb runs; see `launch`.

        Between verbs it is what it was: another device of the same module meets the module's own.

        Raises:
            UsageError: it was named before, or a name is no stage's.
        """
        if any(place[0] is owner and place[1] == name for place in self._places):
            raise UsageError(f"{name} was named twice: say all its tensors at once")
        self._places.append((owner, name, self.launch(getattr(owner, name), **tapped)))

    def __call__(self, stage: str, value: Any, axes: str = "") -> Any:
        """Hand a tensor over: what to continue with, of the same kind and shape, padding unchanged."""
        return self.hand(Shows(stage, axes), value)

    def write(self, stage: str, buffer: Any, axes: str = "") -> None:
        """Hand a buffer's contents over; what the tap returns is written into it."""
        self.hand(Shows(stage, axes), buffer, overwrites=True)

    def caches(
        self, side: Side, caches: Sequence[tuple[Any, Any]], length: int, axes: str = ""
    ) -> list[tuple[Any, Any]]:
        """Hand over a side's keys and values, layer by layer, and its length; the caches to continue with.

        Args:
            caches: of each layer; rows behind `length` are dead.
            length: committed rows.
            axes: the port's, as `B G S D`; the stage's own, with a B or without, where empty.
        """
        rows, self._rows = self._rows, {f"kv.{side}.length": None, f"kv.{side}.*": length, **self._rows}
        continued = []
        for layer, pair in enumerate(caches):
            k, v = (self(f"kv.{side}.{layer}.{part}", x, axes) for part, x in zip("kv", pair, strict=True))
            continued.append((k, v))
        self(f"kv.{side}.length", [length])
        self._rows = rows
        return continued

    def hand(self, shows: Shows, value: Any, call: Given = ((), {}), overwrites: bool = False) -> Any:
        """Hand a tensor over, named by `shows` and the arguments of the call that made it."""
        if self._tap is None or not (shows.only is None or shows.only(*call[0], **call[1])):
            return value
        named = self._named(shows, call)
        if self._when not in named.stage.when:
            return value
        array = to_numpy(value)
        logical = Logical(named, tuple(shows.axes.split()), self._logical(named.name))
        given = np.array(logical.view(array), dtype=np.int64 if named.stage.exact else None)
        kept = given.copy()
        taken = np.asarray(self._tap(named.name, given))
        if taken is given and np.array_equal(taken.view(np.uint8), kept.view(np.uint8)):
            return value
        whole = logical.exchanged(array, taken)
        if overwrites:
            overwrite(value, whole)
            return value
        return replaced(value, whole)

    def check(self, one: str | Shows) -> Shows:
        """A stage's name checked as far as it can be before a pass."""
        shows = Shows(one) if isinstance(one, str) else one
        fields = {name for _, name, _, _ in Formatter().parse(shows.stage) if name}
        if not fields - {"l"} and shows.stage not in self._templates and shows.stage not in self._names:
            raise UsageError(f"{shows.stage!r} is no stage: parity/stages.py lists them")
        return shows

    def _named(self, shows: Shows, call: Given) -> Named:
        name = shows.stage
        if "{l}" in name:
            layer = self._counts[name] if shows.layer is None else shows.layer(*call[0], **call[1])
            self._counts[name] += 1
        try:
            name = name.format(**self._fields, **({"l": layer} if "{l}" in name else {}))
        except KeyError as error:
            raise UsageError(f"{shows.stage!r}: this pass has no field {error}; `begin` names it") from None
        if name not in self._names:
            raise UsageError(f"{shows.stage!r} came as {name!r}, which is no stage of this pair")
        return self._names[name]

    def _logical(self, name: str) -> Rows:
        return next((rows for glob, rows in self._rows.items() if matches(glob, name)), None)


@contextmanager
def _in_place(owner: Any, name: str, launch: Launch) -> Iterator[None]:
    """`owner.name` is the launch for a while."""
    own = name in vars(owner)
    before = vars(owner)[name] if own else None
    setattr(owner, name, launch.as_attribute() if isinstance(owner, type) else launch)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
