"""The `nkipy` engine: kernels traced by the real NKIPy to HLO, which XLA:CPU executes in the hardware's place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from parity.device.engines.traced.engine import Engine
from parity.device.engines.traced.mesh import Replicas
from parity.device.engines.traced.tracer import Program, load_nkipy, tracer_version

NAME = "nkipy"


class OffHardware:
    """XLA:CPU; buffers are jax arrays, over a device for each rank where there are several."""

    name = NAME

    def __init__(self, ranks: int = 1) -> None:
        self.versions = {"nkipy": tracer_version(), "jaxlib": version("jaxlib")}
        self.ranks, self.held = ranks, range(ranks)
        self._replicas = Replicas(ranks)
        self._replaced = 0

    @property
    def notes(self) -> dict[str, str]:
        """What ran in the hardware's place, and what had to be replaced for it."""
        topk = f"{self._replaced} AwsNeuronTopK replaced by a stable descending sort"
        return {"off hardware": f"executed by XLA:CPU, not Trainium; input_output_alias cleared; {topk}"}

    def put(self, parts: Sequence[np.ndarray]) -> Any:
        """A buffer with these values, one array a rank; the caller does not change them any more."""
        return self._replicas.put(parts)

    def get(self, buffer: Any) -> list[np.ndarray]:
        """Each rank's values, read only."""
        return self._replicas.get(buffer)

    def everywhere(self, parts: list[np.ndarray]) -> list[np.ndarray]:
        """As they are: all ranks are in this process."""
        return parts

    def spread(self, ranks: int) -> OffHardware:
        """A new one with this many ranks."""
        return OffHardware(ranks)

    def load(self, program: Program) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Compile the program's HLO for XLA:CPU."""
        self._replaced += sum(one.op_name == "topk" for one in program.code.operations)
        return self._replicas.compiled(program.module)


def engine() -> Engine:
    """A new engine, without programs.

    Raises:
        UsageError: NKIPy is not installed.
    """
    load_nkipy()
    return Engine(OffHardware())
