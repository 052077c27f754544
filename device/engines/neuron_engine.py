"""The `neuron` engine: kernels traced by NKIPy, compiled by the Neuron compiler, run on Trainium.

Everything but this file is shared with the `nkipy` engine. docs/neuron.md lists what was not tried on hardware.
"""

from __future__ import annotations

import os
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
        group: `torch.distributed` where this process is one of several ranks.
    """

    name = NAME

    def __init__(self, runtime: Any, group: Any = None) -> None:
        self._runtime, self._group = runtime, group
        self._kernel, self._tensor = runtime.DeviceKernel, runtime.DeviceTensor
        self.ranks: int = group.get_world_size() if group else 1
        self.held = (int(group.get_rank()) if group else 0,)
        self.versions = {"nkipy": tracer_version(), "neuronx-cc": version("neuronx-cc")}
        self.notes: dict[str, str] = {}

    def put(self, parts: Sequence[np.ndarray]) -> Any:
        """A device tensor with this rank's values."""
        return self._tensor.from_numpy(parts[0])

    def get(self, buffer: Any) -> list[np.ndarray]:
        """A copy on the host."""
        return [buffer.numpy()]

    def everywhere(self, parts: list[np.ndarray]) -> list[np.ndarray]:
        """Every process asks at the same place, and gets what all of them have."""
        gathered: list[Any] = [None] * self.ranks
        self._group.all_gather_object(gathered, parts[0])
        return gathered

    def spread(self, ranks: int) -> Hardware:
        """This core as one of these ranks: a process each, started by torchrun, and all run the same host loop.

        Raises:
            UsageError: there are not as many processes.
        """
        group = import_module("torch.distributed")
        if not group.is_initialized() and group.is_torchelastic_launched():
            group.init_process_group("gloo")
            os.environ.setdefault("NEURON_RT_VISIBLE_CORES", os.environ["LOCAL_RANK"])
        here = group.get_world_size() if group.is_initialized() else 1
        if here != ranks:
            how = f"start them with torchrun --nproc-per-node {ranks}; docs/neuron.md"
            raise UsageError(f"tp: {ranks} ranks on Trainium are as many processes, and there are {here}; {how}.")
        return Hardware(self._runtime, group)

    def load(self, program: Program) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Compile and load; NKIPy keeps what it compiled in its build folder, by content."""
        samples = {one.name: one.sample for one in program.leaves}
        kernel = self._kernel.compile_and_load(program.kernel, name=program.kernel.__name__, **samples)
        inputs, outputs, aliases = program.code.inputs, program.code.outputs, program.aliases

        def run(buffers: Sequence[Any]) -> list[Any]:
            results = [
                buffers[aliases[number]] if number in aliases else self.put([np.zeros(one.shape, one.dtype)])
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
