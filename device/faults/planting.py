"""A fault: what it is, where it must show, and how it gets into a loaded pipeline without a change to a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any

import numpy as np

from parity import device
from parity.device.model import Model
from parity.device.pipeline import Pipeline
from parity.errors import UsageError

VERBS = {"prefill": 2, "draft": 0, "verify": 1, "commit": 2, "decode_plain": 2}
"""The verbs of a pipeline, and how many arguments each takes before the tap."""


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
        drafters: the families of drafters that it is planted in.
        plant: puts it into a pipeline.
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
    drafters: tuple[str, ...]
    plant: Callable[[Pipeline], None]

    @property
    def factory(self) -> Callable[..., Pipeline]:
        """Loads a pair of checkpoints with this defect; takes what `parity.device.load` takes."""

        @wraps(device.load)
        def load(*arguments: Any, **options: Any) -> Pipeline:
            pipeline = device.load(*arguments, **{"tp": self.tp} | options)
            if pipeline.drafter.family not in self.drafters:
                families = " and ".join(self.drafters)
                raise UsageError(f"{self.id} is a fault of {families} drafters, this one is {pipeline.drafter.family}.")
            self.plant(pipeline)
            return pipeline

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
            drafters=PARALLEL,
        )
        details = defaults | self.common | details
        details = {"chained_round": details["round"]} | details

        def enter(plant: Callable[[Pipeline], None]) -> Callable[[Pipeline], None]:
            fault = Fault(id=id, family=self.name, what=what, stage=stage, plant=uncompiled(plant), **details)
            self.faults.append(fault)
            return plant

        return enter


def uncompiled(plant: Callable[[Pipeline], None]) -> Callable[[Pipeline], None]:
    """The same, in a pipeline that runs its kernels operation by operation where its engine compiles them.

    A defect may look at values on the host, or remember them from call to call: a compiled program does that
    once, while it is traced.
    """

    @wraps(plant)
    def run(pipeline: Pipeline) -> None:
        getattr(pipeline.target.engine, "interpret", lambda: None)()
        plant(pipeline)

    return run


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


def during(pipeline: Pipeline, place: str, make: Callable[[Any], Any]) -> None:
    """`make(clean)` stands for the kernel at `module:name` while a verb of this pipeline runs, and for no other device.

    The name is that of the module that calls the kernel, so that target and drafter can differ.
    """
    path, name = place.split(":")
    module = import_module(f"parity.device.{path}")
    if not hasattr(module, name):
        raise LookupError(f"{place}: no kernel is called by that name there")
    for verb in VERBS:
        setattr(pipeline, verb, _within(getattr(pipeline, verb), module, name, make))


def _within(verb: Callable[..., Any], module: Any, name: str, make: Callable[[Any], Any]) -> Callable[..., Any]:
    @wraps(verb)
    def run(*arguments: Any, **options: Any) -> Any:
        clean = getattr(module, name)
        setattr(module, name, make(clean))
        try:
            return verb(*arguments, **options)
        finally:
            setattr(module, name, clean)

    return run


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
            values, tap = arguments[: VERBS[verb]], (arguments[VERBS[verb] :] or (None,))[0] or _through

            def watch(name: str, value: np.ndarray) -> np.ndarray:
                if name != stage:
                    return tap(name, value)
                taken = tap(name, change(value.copy(), *values))
                return value if only_shown else taken

            return clean(*values, watch)

        return run

    instead(pipeline, verb, make)


def _through(_stage: str, value: np.ndarray) -> np.ndarray:
    return value
