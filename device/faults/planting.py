"""A fault: what it is, where it must show, and how it gets into a loaded pipeline without a change to a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from parity import device
from parity.device.asynchronous import Asynchronous
from parity.device.batch import Batch
from parity.device.model import Model
from parity.device.pipeline import Pipeline
from parity.errors import UsageError

VERBS = {"prefill": 2, "draft": 0, "verify": 1, "commit": 2, "decode_plain": 2}
"""The verbs of a pipeline, and how many arguments each takes before the tap."""
LOOP = ("speculate", "generate_together", "decode_plain")
"""What runs the rounds of an asynchronous loop."""


PARALLEL, CHAIN, ALONE, LOOKUP = ("p-eagle",), ("eagle-3",), ("draft-model",), ("n-gram",)
BLOCKS = ("dflash",)
"""Families of drafters, as a golden's manifest names them."""
EITHER = PARALLEL + CHAIN
STEPS = CHAIN + ALONE


@dataclass(frozen=True)
class Fault:
    """One named defect of the device.

    Attributes:
        id: its name.
        family: the part of the pipeline it sits in.
        what: the defect, one sentence.
        stage: where a local comparison first shows it, a full stage name; empty where no comparison can.
        chained: the same for a chained comparison; empty where the noise that travels is as large.
        round: of the first showing in a local comparison; None where the golden decides.
        chained_round: the same in a chained one.
        sites: globs of the stages that are wrong by themselves; what else fails in a chained run inherited it.
        gate: the gate that must turn red, besides any comparison; empty where none can yet.
        same_text: whether the emitted tokens stay what they were, up to ties.
        seen: repository and issue it was met in.
        precision: the device's when it is planted; float32 where bfloat16's noise is as large as the defect.
        tp: the device's tensor-parallel ranks.
        lanes: the device's; with several of them it is planted in each.
        drafters: the families of drafters that it is planted in.
        partial_kv: the pages that a drafter attends to where it is planted, `parity.partial_kv`; empty for all.
        kv_cache: the formats of the caches where it is planted, `parity.kv_cache`; empty for the dtype of the pass.
        batched: it sits in what lanes have in common, and is planted in the whole batch.
        compiled: it is the same at every call, so that an engine's programs may hold it.
        loop: the loop that it is planted in, where that is not the synchronous one; another device is left as it is.
        plant: puts it into a pipeline, a batch or a loop.
    """

    id: str
    family: str
    what: str
    stage: str
    chained: str
    round: int | None
    chained_round: int | None
    sites: tuple[str, ...]
    gate: str
    same_text: bool
    seen: str
    precision: str
    tp: int
    lanes: int
    drafters: tuple[str, ...]
    partial_kv: str
    kv_cache: str
    batched: bool
    compiled: bool
    loop: str
    plant: Callable[[Any], None]

    @property
    def factory(self) -> Callable[..., Pipeline | Batch | Asynchronous]:
        """Loads a pair of checkpoints with this defect; takes what `parity.device.load` takes."""

        @wraps(device.load)
        def load(*arguments: Any, **options: Any) -> Pipeline | Batch | Asynchronous:
            own: dict[str, Any] = {"tp": self.tp, "lanes": self.lanes}
            own |= {"partial_kv": self.partial_kv, "kv_cache": self.kv_cache}
            own |= {"loop": self.loop} if self.loop else {}
            loaded = device.load(*arguments, **own | options)
            family = _pipelines(loaded)[0].drafter.family
            if family not in self.drafters:
                families = " and ".join(self.drafters)
                raise UsageError(f"{self.id} is a fault of {families} drafters, this one is {family}.")
            self.plant(loaded)
            return loaded

        return load


class Family:
    """The faults of one part of the pipeline, in order; `where` fills in what its faults have in common."""

    def __init__(self, name: str, **common: Any) -> None:
        self.name, self.common = name, common
        self.faults: list[Fault] = []

    def __call__(self, id: str, what: str, stage: str = "", **details: Any) -> Callable[..., Any]:
        """Enter the decorated function, which changes a pipeline, as a fault."""
        defaults: dict[str, Any] = dict(
            chained=stage,
            round=0,
            sites=(stage,),
            gate="stages",
            same_text=False,
            precision="bfloat16",
            tp=1,
            lanes=1,
            drafters=PARALLEL,
            partial_kv="",
            kv_cache="",
            batched=False,
            compiled=False,
            loop="",
        )
        details = defaults | self.common | details
        details = {"chained_round": details["round"]} | details

        def enter(plant: Callable[[Any], None]) -> Callable[[Any], None]:
            put = in_each(plant, details["batched"], details["compiled"], details["loop"])
            fault = Fault(id=id, family=self.name, what=what, stage=stage, plant=put, **details)
            self.faults.append(fault)
            return plant

        return enter


def in_each(
    plant: Callable[[Any], None], batched: bool = False, compiled: bool = False, loop: str = ""
) -> Callable[[Pipeline | Batch | Asynchronous], None]:
    """The same in every lane of a batch, or once in the whole where it is `batched`; a fault of another `loop` nowhere.

    The device runs its kernels operation by operation from then on: a defect may look at values on the host, or
    remember them from call to call, and a compiled program does that once, while it is traced. One that may be
    `compiled` is, by an engine whose programs no other device runs.
    """

    @wraps(plant)
    def run(planted: Pipeline | Batch | Asynchronous) -> None:
        if loop and not isinstance(planted, Asynchronous):
            return
        lanes = _pipelines(planted)
        engine = lanes[0].engine
        if not (compiled and getattr(engine, "own_programs", False)):
            getattr(engine, "interpret", lambda: None)()
        for one in [planted] if batched or loop else lanes:
            plant(one)

    return run


def _pipelines(loaded: Pipeline | Batch | Asynchronous) -> Sequence[Pipeline]:
    """The pipelines that hold its sequences."""
    if isinstance(loaded, Batch):
        return loaded.lanes
    return [loaded.pipeline if isinstance(loaded, Asynchronous) else loaded]


def edit(model: Model, names: str, change: Callable[[np.ndarray], np.ndarray], layers: Iterable[int] = ()) -> None:
    """Replace weights of these space-separated names, of these layers or outside all layers, by `change(weight)`."""
    for weights in [model.layers[layer] for layer in layers] or [model.outer]:
        for name in names.split():
            host = model.engine.host(weights[name])
            wide = host if host.dtype.kind in "iu" else host.astype(np.float32)
            weights[name] = model.engine.array(np.ascontiguousarray(change(wide)), model.dtype)


def every(model: Model) -> range:
    """Numbers of all its layers."""
    return range(len(model.layers))


def during(pipeline: Pipeline | Asynchronous, place: str, make: Callable[[Any], Any]) -> None:
    """`make(clean)` stands for the kernel at `module:name` while a verb of this pipeline, or its loop, runs, and for no
    other device.

    The name is that of the module that calls the kernel, so that target and drafter can differ.
    """
    path, name = place.split(":")
    module = import_module(f"parity.device.{path}")
    if not hasattr(module, name):
        raise LookupError(f"{place}: no kernel is called by that name there")
    stand_in = _StandIn(module, name, make, _planted_in(pipeline))
    for verb in LOOP if isinstance(pipeline, Asynchronous) else VERBS:
        setattr(pipeline, verb, _within(getattr(pipeline, verb), stand_in))


def _within(verb: Callable[..., Any], stand_in: _StandIn) -> Callable[..., Any]:
    @wraps(verb)
    def run(*arguments: Any, **options: Any) -> Any:
        with stand_in:
            return verb(*arguments, **options)

    return run


def _planted_in(pipeline: Pipeline | Asynchronous) -> int:
    """How many kernels were replaced in this pipeline before: the same number in every lane of a batch."""
    count: int = getattr(pipeline, "kernels_replaced", 0)
    vars(pipeline)["kernels_replaced"] = count + 1
    return count


_absent: ContextVar[bool] = ContextVar("faults absent", default=False)


@contextmanager
def planted_absent(absent: bool) -> Iterator[None]:
    """Kernels that stand for others are the right ones here, in this thread, where they are `absent`."""
    before = _absent.set(absent)
    try:
        yield
    finally:
        _absent.reset(before)


class _Chosen:
    """A kernel, or a module of kernels, in the place of another one except where faults are absent."""

    def __init__(self, clean: Any, planted: Any) -> None:
        self._clean, self._planted = clean, planted

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return (self._clean if _absent.get() else self._planted)(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clean if _absent.get() else self._planted, name)


class _StandIn:
    """What stands for a kernel; lanes of a batch are in their verbs at once, the first puts it there, the last takes it
    away."""

    standing: ClassVar[dict[tuple[Any, ...], tuple[int, Any]]] = {}

    def __init__(self, module: Any, name: str, make: Callable[[Any], Any], number: int) -> None:
        self.module, self.name, self.make = module, name, make
        self.key = module.__name__, name, number

    def __enter__(self) -> None:
        count, clean = self.standing.get(self.key, (0, getattr(self.module, self.name)))
        self.standing[self.key] = count + 1, clean
        if not count:
            setattr(self.module, self.name, _Chosen(clean, self.make(clean)))

    def __exit__(self, *error: object) -> None:
        count, clean = self.standing.pop(self.key)
        if count > 1:
            self.standing[self.key] = count - 1, clean
        else:
            setattr(self.module, self.name, clean)


def instead(owner: Any, method: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """`make(clean)` stands for a method of this one object."""
    setattr(owner, method, make(getattr(owner, method)))


def altered(
    pipeline: Pipeline, verb: str, stage: str, change: Callable[..., np.ndarray], only_shown: bool = False
) -> None:
    """Under this verb `stage` is `change(value, *the verb's arguments)`, and the device continues with that.

    Where it is `only_shown`, the device continues with the right value.
    """

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            values, (tap, *rest) = arguments[: VERBS[verb]], arguments[VERBS[verb] :] or (None,)

            shown = tap or _through

            def watch(name: str, value: np.ndarray) -> np.ndarray:
                if name != stage:
                    return shown(name, value)
                taken = shown(name, change(value.copy(), *values))
                return value if only_shown else taken

            return clean(*values, watch, *rest)

        return run

    instead(pipeline, verb, make)


def _through(_stage: str, value: np.ndarray) -> np.ndarray:
    return value
