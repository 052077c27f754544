"""The `nkipy` engine: kernels traced by the real NKIPy to HLO, which XLA:CPU executes in the hardware's place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from device.engines.traced.engine import Engine
from device.engines.traced.lowering import compiled
from device.engines.traced.tracer import Program

NAME = "nkipy"


class OffHardware:
    """XLA:CPU; buffers are jax arrays."""

    name = NAME

    def put(self, value: np.ndarray) -> Any:
        """A buffer with these values; the caller does not change them any more."""
        import jax

        return jax.device_put(np.ascontiguousarray(value), jax.devices("cpu")[0])

    def get(self, buffer: Any) -> np.ndarray:
        """The buffer's values, read only."""
        return np.asarray(buffer)

    def load(self, program: Program) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Compile the program's HLO for XLA:CPU."""
        return compiled(program.code)


def engine() -> Engine:
    """A new engine, without programs."""
    return Engine(OffHardware())
