"""The `nkipy` engine: kernels traced by the real NKIPy to HLO, which XLA:CPU executes in the hardware's place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from device.engines.traced import lowering
from device.engines.traced.engine import Engine
from device.engines.traced.tracer import Program, load_nkipy, tracer_version

NAME = "nkipy"


class OffHardware:
    """XLA:CPU; buffers are jax arrays."""

    name = NAME

    def __init__(self) -> None:
        executed = f"{version('jaxlib')} (XLA:CPU, off hardware: {lowering.REPLACED})"
        self.versions = {"nkipy": tracer_version(), "jaxlib": executed}

    def put(self, value: np.ndarray) -> Any:
        """A buffer with these values; the caller does not change them any more."""
        return lowering.buffer(value)

    def get(self, buffer: Any) -> np.ndarray:
        """The buffer's values, read only."""
        return np.asarray(buffer)

    def load(self, program: Program) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Compile the program's HLO for XLA:CPU."""
        return lowering.compiled(program.code)


def engine() -> Engine:
    """A new engine, without programs.

    Raises:
        UsageError: NKIPy is not installed.
    """
    load_nkipy()
    return Engine(OffHardware())
