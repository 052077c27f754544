"""The device behind a name: found, built, and asked whether it is what was asked for. Its code runs guarded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from parity.errors import NotOffered, UsageError
from parity.factory_options import read_option, takes
from parity.guard import check_description, guard
from parity.guarded_call import call_guarded, watch_threads
from parity.guarded_kinds import Guarded
from parity.partly_shown import shown_only
from parity.seam import Batched, Device, Layered, Multiply, Operate, Operation, Operations, Rotary, Work

ENGINES = dict.fromkeys(("numpy", "xla", "nkipy", "neuron"), "parity.device") | {"torch": "parity.device.torch"}
"""Devices with a name of their own, and the module of each: its function `load` builds it."""
SHOW = "show"
"""The option of every device that hides all but a part of it: a view, or stage globs with + between them."""
CALLED_WITH = ("target", "drafter", "k", "precision")
"""What every factory takes."""
FIXED = (*CALLED_WITH, "engine", "partial_kv", "kv_cache")
"""What the golden and the command decide, never an option behind a device's name."""


class Factory:
    """How to build the device of a name on a pair of checkpoints.

    A factory is called as `factory(target=..., drafter=..., k=..., precision=...)`; `max_positions` and
    `batch` are options it may take as well. The name may end in options of its own: `numpy,tp=2,moe=gathered`;
    each arrives in the type that the factory's signature asks for. The option `show` is taken here, for every device:
    `numpy,show=layer-kernels`, `numpy,show=logits+kv.*`.

    Args:
        name: as given to `--device`.
        k: K where a device is not asked for with another.
        partial_kv: the pages that a drafter's row attends to, which a factory takes as `partial_kv`; see
            `parity.partial_kv`.
        kv_cache: the formats of the caches, which a factory takes as `kv_cache`; see `parity.kv_cache`.

    Raises:
        UsageError: the name is unknown, cannot be imported, is no factory's, or has an option that the factory has not.
        DeviceFailed: its module raises.
    """

    def __init__(self, name: str, target: Path, drafter: Path, k: int, partial_kv: str = "", kv_cache: str = ""):
        self.name, self.k = name, k
        self.case = {name: value for name, value in (("partial_kv", partial_kv), ("kv_cache", kv_cache)) if value}
        self._make, self._named = _imported(name), options_of(name)
        self._fixed = {"target": target, "drafter": drafter} | _engine(name)
        for option in (*CALLED_WITH, *(self._named.keys() - {SHOW})):
            if not takes(self._make, option):
                raise UsageError(f"--device {name}: its factory takes no {option}")

    def __call__(self, precision: str, **options: int) -> Guarded:
        """Build a device; `options` are `k`, `max_positions` and `batch`.

        Raises:
            NotOffered: the factory does not take an option.
            UsageError: an option does not fit, or the device describes itself as another than it was asked for.
        """
        made, k = self.unchecked(precision, **options), int(options.get("k", self.k))
        lanes = self.given(**options).get("lanes")
        call_guarded(self.name, "describe", lambda: self._check(made, precision, k, lanes))
        return made

    def _check(self, made: Guarded, precision: str, k: int, lanes: int | None) -> None:
        says = made.describe()
        check_description(says, self.name, precision, k, lanes=lanes, **self.case)
        if says.lanes > 1 and not isinstance(made, Batched):
            raise UsageError(
                f"--device {self.name} describes itself as {says.lanes} lanes and lacks verbs of parity.seam.Batched"
            )

    def unchecked(self, precision: str, **options: int) -> Guarded:
        """Build a device as a call does, whatever it describes itself as."""
        given, show = self.given(**options), self._named.get(SHOW, "")
        watch_threads()
        return call_guarded(
            self.name,
            "its factory",
            lambda: guard(shown_only(self._make(**self._fixed, precision=precision, **given), show), self.name),
        )

    def given(self, **options: int) -> dict[str, Any]:
        """What its factory is called with beside checkpoints and precision.

        Raises:
            NotOffered: the factory does not take an option.
            UsageError: an option does not fit.
        """
        named = {option: text for option, text in self._named.items() if option != SHOW}
        for option in (*self.case, *named, *options):
            if not takes(self._make, option):
                raise NotOffered(f"--device {self.name}: its factory takes no {option}")
        read = {option: read_option(self.name, self._make, option, text) for option, text in named.items()}
        return {"k": self.k, **self.case, **read, **options}

    def layered(self, precision: str, max_positions: int) -> Layered:
        """Build what runs the target's layers one at a time: `layered` in the device's module.

        Args:
            max_positions: rows that the caches need; the option of the device's name where it has one.

        Raises:
            NotOffered: there is none, or it does not take an option.
            UsageError: an option does not fit, or it describes itself as another than it was asked for.
        """
        module, _ = module_of(self.name)
        make = getattr(_module(self.name), "layered", None)
        if make is None:
            raise NotOffered(f"--device {self.name}: its module {module} has no function layered")
        alone = copy(self)
        alone._make = make
        size = {"max_positions": max_positions} if takes(make, "max_positions") else {}
        given = size | alone.given()

        def build() -> Guarded:
            return guard(make(**self._fixed, precision=precision, **given), self.name)

        made = call_guarded(self.name, "layered", build)
        if not isinstance(made, Layered):
            raise UsageError(f"--device {self.name}: what its function layered made lacks verbs of parity.seam.Layered")
        check_description(made.describe(), self.name, precision, self.k, lanes=None, **self.case)
        return made

    def rotary(self) -> Rotary | None:
        """The rotary embedding: `rotate` in the device's module; None where there is none."""
        return _function(self.name, "rotate")


def multiplier(name: str) -> Multiply:
    """The matrix multiplication of a device: `multiply` in its module; raises as `operator`."""
    multiply: Multiply = _beside(name, "multiply")
    return multiply


def operator(name: str) -> Operate:
    """The operations of a device: `operate` in its module.

    Raises:
        UsageError: the name is unknown, or has options.
        NotOffered: there is none.
    """
    operate: Operate = _beside(name, "operate")
    return operate


def own_operations(name: str) -> list[Operation]:
    """The operations of a device's own programs: `operations` in its module; none where there is none.

    Raises:
        UsageError: it gives something else.
    """
    operations: Operations | None = _function(name, "operations")
    found = [] if operations is None else list(dict.fromkeys(operations()))
    for one in found:
        if not isinstance(one, Operation):
            raise UsageError(f"--device {name}: its function operations gave a {type(one).__name__}, not an Operation")
    return found


def work_of(name: str, target: Path, drafter: Path, k: int, context: int, precision: str) -> Mapping[str, Work] | None:
    """The work of a device's phases: `work` in its module; None where there is none.

    Raises:
        UsageError: an option that it does not read, or it gives something else.
    """
    work = getattr(_module(name), "work", None)
    if work is None:
        return None
    options = {
        option: read_option(name, work, option, text)
        for option, text in options_of(name).items()
        if takes(work, option)
    }
    found = call_guarded(name, "work", partial(work, target, drafter, k, context, precision, **options))
    if not isinstance(found, Mapping) or not all(isinstance(one, Work) for one in found.values()):
        raise UsageError(f"--device {name}: its function work gave no mapping of phases to parity.seam.Work")
    return found


def _beside(name: str, function: str) -> Any:
    """A function in the module of a device's factory, without the device."""
    module, made_by = module_of(name)
    if not made_by or options_of(name):
        raise UsageError(
            f"--device {name}: neither one of {', '.join(ENGINES)} nor package.module:factory, without options"
        )
    found = _function(name, function)
    if found is None:
        raise NotOffered(f"--device {name}: its module {module} has no function {function}")
    return found


def module_of(name: str) -> tuple[str, str]:
    """Module and factory behind a device's name; no factory where the name has none."""
    name = name.partition(",")[0]
    module, _, factory = (ENGINES[name], "", "load") if name in ENGINES else name.partition(":")
    return module, factory


def options_of(name: str) -> dict[str, str]:
    """The options behind a device's name, as they are written."""
    options: dict[str, str] = {}
    for part in name.split(",")[1:]:
        option, equals, value = part.partition("=")
        if not (option.isidentifier() and equals and value) or option in (*FIXED, *options):
            raise UsageError(f"--device {name}: {part!r} is no option; options follow the name as in numpy,tp=2")
        options[option] = value
    return options


def _imported(name: str) -> Callable[..., Device]:
    _, factory = module_of(name)
    options_of(name)
    if not factory:
        raise UsageError(f"--device {name}: neither one of {', '.join(ENGINES)} nor package.module:factory")
    if not factory.isidentifier():
        raise UsageError(f"--device {name} cannot be imported: {factory!r} names no factory")
    try:
        make: Callable[..., Device] = getattr(_module(name), factory)
    except AttributeError as error:
        raise UsageError(f"--device {name} cannot be imported: {error}") from None
    try:
        signature(make)
    except (TypeError, ValueError):
        what = "type without a signature" if isinstance(make, type) else type(make).__name__
        raise UsageError(
            f"--device {name}: a {what} is no factory, which is called with target, drafter, k and precision"
        ) from None
    return make


def _module(name: str) -> ModuleType:
    module, _ = module_of(name)
    if not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(
            f"--device {name}: {module!r} names no module; it is package.module:factory, with dots and without .py"
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # a device lies where the user works, installed or not

    def load() -> ModuleType:
        try:
            return import_module(module)
        except ImportError as error:
            raise UsageError(f"--device {name} cannot be imported: {error}") from None

    return call_guarded(name, "its import", load)


def _function(name: str, function: str) -> Callable[..., Any] | None:
    """A function beside the factory, guarded."""
    attribute = getattr(_module(name), function, None)
    return attribute and partial(call_guarded, name, function, partial(attribute, **_engine(name)))


def _engine(name: str) -> dict[str, str]:
    engine = name.partition(",")[0]
    return {"engine": engine} if ENGINES.get(engine) == "parity.device" else {}
