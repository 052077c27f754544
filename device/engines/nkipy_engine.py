"""The `nkipy` engine: kernels traced by the real NKIPy to HLO, which XLA:CPU executes in the hardware's place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from parity.device.engines.traced import lowering
from parity.device.engines.traced.engine import Engine
from parity.device.engines.traced.tracer import Program, load_nkipy, tracer_version

NAME = "nkipy"


class OffHardware:
    """XLA:CPU; buffers are jax arrays."""

    name = NAME

    def __init__(self) -> None:
        self.versions = {"nkipy": tracer_version(), "jaxlib": version("jaxlib")}
        self._replaced = 0

    @property
    def notes(self) -> dict[str, str]:
        """What ran in the hardware's place, and what had to be replaced for it."""
        topk = f"{self._replaced} AwsNeuronTopK replaced by a stable descending sort"
        return {"off hardware": f"executed by XLA:CPU, not Trainium; input_output_alias cleared; {topk}"}

    def put(self, value: np.ndarray) -> Any:
        """A buffer with these values; the caller does not change them any more."""
        return lowering.buffer(value)

    def get(self, buffer: Any) -> np.ndarray:
        """The buffer's values, read only."""
        return np.asarray(buffer)

    def load(self, program: Program) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Compile the program's HLO for XLA:CPU."""
        self._replaced += sum(one.op_name == "topk" for one in program.code.operations)
        return lowering.compiled(program.code)


def engine() -> Engine:
    """A new engine, without programs.

    Raises:
        UsageError: NKIPy is not installed.
    """
    load_nkipy()
    return Engine(OffHardware())
