"""Sorts what a run multiplies and compiles by place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from parity.device.kernels.step import Step
from parity.seam import Gemm, Operation

ATTENTION = "attention"
"""In place of a weight's name: scores and their weighted sum, which multiply with the cache."""
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.|^(midlayer)\.")


@dataclass(frozen=True)
class Place:
    """Where a multiplication is met.

    Args:
        phase: `prefill`, `draft`, `verify` or `commit`.
        side: `target` or `drafter`.
        weight: its name in the checkpoint without layer number, or `attention`.
        kind: of the layer: `sliding`, `full`, `midlayer`, `plain`; empty outside the layers.
    """

    phase: str
    side: str
    weight: str
    kind: str


@dataclass(frozen=True)
class Program:
    """What an engine compiles once.

    Args:
        kernel: module and function.
        arrays: dtype and shape of every array argument.
        static: the other arguments; a config by the name of its class.
    """

    kernel: str
    arrays: tuple[str, ...]
    static: tuple[str, ...]


class Tally:
    """Calls of each multiplication by place, and of each program and operation by phase.

    A multiplication without a weight belongs to the layer of the weight before it.
    """

    def __init__(self) -> None:
        self.gemms: dict[Gemm, Counter[Place]] = {}
        self.programs: dict[Program, Counter[str]] = {}
        self.operations: dict[Operation, Counter[str]] = {}
        self.windows: tuple[int | None, ...] = ()  # of the target's layers
        self.phase, self._side, self._kind = "load", "", ""

    def called(self, kernel: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Count one call of a program."""
        leaves = list(_leaves(arguments))
        arrays = tuple(f"{one.dtype.name}{list(one.shape)}" for one in leaves if hasattr(one, "shape"))
        static = tuple(_plain(one) for one in leaves if not hasattr(one, "shape"))
        program = Program(f"{kernel.__module__}.{kernel.__qualname__}", arrays, static)
        self.programs.setdefault(program, Counter())[self.phase] += 1

    def operated(self, operation: Operation) -> None:
        """Count one operation."""
        self.operations.setdefault(operation, Counter())[self.phase] += 1

    def multiplied(self, gemm: Gemm, name: str) -> None:
        """Count one multiplication by the weight of this name."""
        weight = ATTENTION
        if name:
            self._side, _, weight = name.partition(":")
            self._kind = self._kind_of(_LAYER.search(weight))
            weight = _LAYER.sub("", weight.removeprefix("model.")).removesuffix(".weight")
        self.gemms.setdefault(gemm, Counter())[Place(self.phase, self._side, weight, self._kind)] += 1

    def _kind_of(self, layer: re.Match[str] | None) -> str:
        if layer is None:
            return ""
        if self._side == "drafter":
            return layer[2] or "plain"
        return "full" if self.windows[int(layer[1])] is None else "sliding"


def _leaves(value: Any) -> Iterator[Any]:
    """Arrays and static values among the arguments of a program."""
    if isinstance(value, Step):
        value = vars(value)
    if isinstance(value, dict):
        value = [one for _name, one in sorted(value.items(), key=lambda item: str(item[0]))]
    if isinstance(value, tuple | list):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def _plain(value: Any) -> str:
    """A static argument in a word: a config is the same throughout a run."""
    if isinstance(value, int | float | str | None):
        return repr(value)
    return getattr(value, "__name__", type(value).__name__).strip("_")
