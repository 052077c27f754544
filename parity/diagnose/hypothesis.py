"""What diagnosis reads of a hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from parity.trace import Recorded


class FitRange(Protocol):
    """The interval in which a parameter is fitted: on a log scale or a linear one, whole numbers or any.

    `clean` is the value that changes nothing; None where there is none that is known. A golden that has `constant`,
    a side and a config key, in its manifest says it for its own checkpoints.
    """

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def clean(self) -> float | None: ...
    @property
    def log(self) -> bool: ...
    @property
    def whole(self) -> bool: ...
    @property
    def constant(self) -> str: ...


class CheckableHypothesis(Protocol):
    """What diagnosis reads of a hypothesis; the catalogue that ships is `parity.references.hypotheses`."""

    @property
    def id(self) -> str: ...
    @property
    def stages(self) -> tuple[str, ...]: ...
    @property
    def values(self) -> tuple[Any, ...]: ...
    @property
    def fit(self) -> FitRange | None: ...
    @property
    def infer(self) -> Callable[[Recorded, Recorded], Any] | None: ...
    @property
    def layered(self) -> bool: ...
    @property
    def cost(self) -> int: ...
    @property
    def passes(self) -> str: ...
    @property
    def part(self) -> str: ...
    @property
    def fix(self) -> str: ...
    @property
    def seen(self) -> tuple[str, ...]: ...
    def sized(self, layer: int, number: int, factor: float) -> Any: ...
    def describe(self, value: Any) -> str: ...


Assumption = tuple[CheckableHypothesis, Any]
"""A hypothesis and the value of its parameter."""


class NotComparable(Exception):
    """A counterfactual that holds NaN or Inf: it explains nothing that is finite."""

    skip = True
