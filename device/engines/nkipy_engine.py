"""The `nkipy` engine: kernels traced by the real NKIPy to HLO, which XLA:CPU executes in the hardware's place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

from device.engines.traced.engine import Engine
from device.engines.traced.tracer import Program, load_nkipy, tracer_version
from parity.errors import UsageError

NAME = "nkipy"


class OffHardware:
    """XLA:CPU; buffers are jax arrays."""

    name = NAME

    def __init__(self) -> None:
        from device.engines.traced import lowering

        self._lowering = lowering
        executed = f"{version('jaxlib')} (XLA:CPU, off hardware: {lowering.REPLACED})"
        self.versions = {"nkipy": tracer_version(), "jaxlib": executed}

    def put(self, value: np.ndarray) -> Any:
        """A buffer with these values; the caller does not change them any more."""
        return self._lowering.buffer(value)

    def get(self, buffer: Any) -> np.ndarray:
        """The buffer's values, read only."""
        return np.asarray(buffer)

    def load(self, program: Program) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Compile the program's HLO for XLA:CPU."""
        return self._lowering.compiled(program.code)


def engine() -> Engine:
    """A new engine, without programs.

    Raises:
        UsageError: NKIPy or jax is not installed.
    """
    load_nkipy()
    if not find_spec("jax"):
        raise UsageError("the nkipy engine executes on XLA: pip install 'parity-harness[nkipy]'.")
    return Engine(OffHardware())
