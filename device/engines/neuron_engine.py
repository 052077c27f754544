"""The `neuron` engine: kernels traced by NKIPy, compiled by the Neuron compiler, run on Trainium.

Everything but this file is shared with the `nkipy` engine. docs/neuron.md lists what was not tried on hardware.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from parity.device.engines.traced.engine import Engine
from parity.device.engines.traced.tracer import Program, load_nkipy, tracer_version
from parity.errors import UsageError

NAME, DEVICES = "neuron", Path("/dev")


class Hardware:
    """One NeuronCore; buffers are `DeviceTensor`s.

    Args:
        runtime: the module `nkipy.runtime`.
    """

    name = NAME

    def __init__(self, runtime: Any) -> None:
        self._kernel, self._tensor = runtime.DeviceKernel, runtime.DeviceTensor
        self.versions = {"nkipy": tracer_version(), "neuronx-cc": version("neuronx-cc")}
        self.notes: dict[str, str] = {}

    def put(self, value: np.ndarray) -> Any:
        """A device tensor with these values."""
        return self._tensor.from_numpy(value)

    def get(self, buffer: Any) -> np.ndarray:
        """A copy on the host."""
        values: np.ndarray = buffer.numpy()
        return values

    def load(self, program: Program) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Compile and load; NKIPy keeps what it compiled in its build folder, by content."""
        samples = {one.name: one.sample for one in program.leaves}
        kernel = self._kernel.compile_and_load(program.kernel, name=program.kernel.__name__, **samples)
        inputs, outputs, aliases = program.code.inputs, program.code.outputs, program.aliases

        def run(buffers: Sequence[Any]) -> list[Any]:
            results = [
                buffers[aliases[number]] if number in aliases else self.put(np.zeros(one.shape, one.dtype))
                for number, one in enumerate(outputs)
            ]
            # The HLO calls an argument that is written `NAME.must_alias_input`; its output is the same tensor.
            given = {one.name: buffer for one, buffer in zip(inputs, buffers, strict=True)}
            kernel(inputs=given, outputs={one.name: buffer for one, buffer in zip(outputs, results, strict=True)})
            return results

        return run


def engine() -> Engine:
    """A new engine, without programs.

    Raises:
        UsageError: NKIPy, a Neuron device, the compiler or NKIPy's runtime is missing.
    """
    load_nkipy()
    if not any(DEVICES.glob("neuron[0-9]*")):
        raise UsageError(f"the neuron engine needs a Neuron device: {DEVICES}/neuron* is absent; docs/neuron.md.")
    try:
        with redirect_stdout(sys.stderr):  # where it prints that its runtime is missing
            runtime = import_module("nkipy.runtime")
    except ImportError as error:
        raise UsageError(f"the neuron engine needs the Neuron compiler ({error}); docs/neuron.md.") from None
    if not hasattr(runtime, "DeviceKernel"):
        raise UsageError("the neuron engine needs NKIPy's runtime, package spike; docs/neuron.md.")
    return Engine(Hardware(runtime))
