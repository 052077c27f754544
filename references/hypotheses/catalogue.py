"""What a hypothesis is: one way in which a port of speculative decoding is known to be wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

Tensors = Mapping[tuple[int, str], np.ndarray]
"""(round, full stage name) to a stage's tensor."""

Apply = Callable[[Any, Any], AbstractContextManager]
"""(loop, value) to the context in which the loop computes under the hypothesis."""


@dataclass(frozen=True)
class Fit:
    """A parameter that is fitted: between `low` and `high`, on a log scale or a linear one, whole numbers or any.

    `clean` is the value at which nothing is wrong; None where every value is.
    """

    low: float
    high: float
    clean: float | None
    log: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Hypothesis:
    """One assumption about what is wrong, as a mutation of the references.

    Attributes:
        id: the catalogue's id of the defect.
        says: what is wrong, with `{value}` for the parameter.
        stages: stage globs where it can show first in a local comparison.
        apply: the mutation of a `parity.references.loop.SpeculativeLoop`, undone on exit; it raises
            `parity.references.mutations.NotApplicable` where this pair of checkpoints gives it nothing to change.
        values: discrete values to try, the most usual first.
        fit: a parameter to fit beside them.
        infer: reads the value out of (device, golden) tensors; None where they do not tell.
        layered: `value` may also be "all", "even", "odd" or the number of a layer.
        fix: the usual place of the fix.
        seen: where it was met in public.
        cost: 1 shows in one stage, 2 needs verify rounds, 3 needs another prompt or a free generation.
    """

    id: str
    says: str
    stages: tuple[str, ...]
    apply: Apply
    values: tuple[Any, ...] = (None,)
    fit: Fit | None = None
    infer: Callable[[Tensors, Tensors], Any] | None = None
    layered: bool = False
    fix: str = ""
    seen: tuple[str, ...] = ()
    cost: int = 1

    @property
    def defect(self) -> str:
        """The catalogue's id, whichever model it is in: `-drafter` at the end of `id` says that it is the drafter."""
        return self.id.removesuffix("-drafter")

    def describe(self, value: Any = None) -> str:
        """What is wrong, with this value of the parameter."""
        where = {"all": "", "even": " in even layers", "odd": " in odd layers"}
        if self.layered:
            return self.says + where.get(value, f" in layer {value}")
        return self.says.format(value=value)


class Mutations:
    """A module of `parity.references.mutations`, imported when one of its mutations is applied: metadata needs no torch."""

    def __init__(self, module: str):
        self.module = f"parity.references.mutations.{module}"

    def __getattr__(self, name: str) -> Apply:
        if name.startswith("__"):
            raise AttributeError(name)
        return partial(_apply, self.module, name)


def _apply(module: str, name: str, /, *arguments: Any, **options: Any) -> AbstractContextManager:
    return getattr(import_module(module), name)(*arguments, **options)
