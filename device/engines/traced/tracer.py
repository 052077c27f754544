"""A kernel through the real NKIPy tracer: nested arguments in, an HLO module with named inputs and outputs out.

The tracer itself needs no Neuron compiler and no hardware.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import distribution
from importlib.util import find_spec
from typing import Any

import numpy as np

from parity.device.engines.traced import collectives
from parity.device.engines.traced.arguments import Skeleton, join, split
from parity.device.kernels.collectives import meeting
from parity.errors import UsageError


@dataclass(frozen=True)
class Leaf:
    """One array argument: its name in the HLO, shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def sample(self) -> np.ndarray:
        """An array of this shape that takes no memory: a tracer looks at nothing else."""
        return np.broadcast_to(np.zeros((), edge(self.dtype)), self.shape)


@dataclass(frozen=True)
class Program:
    """A traced function.

    Args:
        kernel: the `NKIPyKernel`, specialised.
        leaves: its array arguments, in the order of the HLO's parameters.
        taken: their places among the arguments; those that the function does not use are no parameters.
        result: what the function returned, arrays taken out.
        outputs: HLO output number and dtype of each of those arrays.
    """

    kernel: Any
    leaves: tuple[Leaf, ...]
    taken: tuple[int, ...]
    result: Skeleton
    outputs: tuple[tuple[int, np.dtype], ...]

    @property
    def code(self) -> Any:
        """The HLO module, as the Neuron compiler gets it."""
        return self.kernel._code

    @cached_property
    def module(self) -> Any:
        """Its `HloModuleProto`; nobody changes it."""
        return self.code.to_proto()

    @cached_property
    def collectives(self) -> list[collectives.Collective]:
        """Those of its HLO, in order."""
        return collectives.of(self.module)

    @property
    def aliases(self) -> dict[int, int]:
        """HLO output number to the parameter that it overwrites."""
        return {one.output_index: one.param_index for one in self.code.aliases}


def edge(dtype: np.dtype) -> np.dtype:
    """The dtype in which an array enters and leaves a program: the Neuron runtime has no bool."""
    return np.dtype(np.uint8) if dtype == np.bool_ else dtype


def trace(function: Callable[..., Any], skeleton: Skeleton, leaves: tuple[Leaf, ...], ranks: int = 1) -> Program:
    """Trace `function` on the arguments, by name, whose skeleton this is, as each of this many ranks runs it.

    Raises:
        UsageError: NKIPy is not installed, or a collective leaves ranks out.
        ValueError: two arguments have one name in the HLO.
    """
    kernel_class, tensor = load_nkipy()
    if len({one.name for one in leaves}) < len(leaves):
        raise ValueError(f"{function.__name__}: two arguments have one name: {sorted(one.name for one in leaves)}")
    returned: list[Any] = []

    def body(**arrays: Any) -> list[Any]:
        entering = (_entering(arrays[one.name], one.dtype) if one.name in arrays else one.sample for one in leaves)
        with meeting(collectives.Traced(ranks) if ranks > 1 else None):
            returned[:] = split(function(**join(skeleton, entering)), tensor)
        return [_leaving(one) for one in _distinct(returned[1])]

    body.__name__ = function.__name__.strip("<>_")
    kernel = kernel_class.trace(body, backend="hlo")
    used = _used(kernel.specialize(**{one.name: one.sample for one in leaves}))
    taken = tuple(place for place, one in enumerate(leaves) if one.name in used)
    if len(taken) < len(leaves):
        kernel.specialize(**{leaves[place].name: leaves[place].sample for place in taken})
    result, found = returned
    numbers = {id(one.backend_tensor): number for number, one in enumerate(_distinct(found))}
    outputs = tuple((numbers[id(one.backend_tensor)], np.dtype(one.dtype)) for _, one in found)
    program = Program(kernel, tuple(leaves[place] for place in taken), taken, result, outputs)
    collectives.check(program.collectives, ranks)
    return program


def load_nkipy() -> tuple[Any, type]:
    """`NKIPyKernel`, and the class of the tensors under its trace.

    Raises:
        UsageError: NKIPy is not installed.
    """
    if not find_spec("nkipy"):
        raise UsageError("the nkipy and neuron engines need NKIPy; docs/neuron.md says how to install it.")
    return import_module("nkipy.core.trace").NKIPyKernel, import_module("nkipy.core.tensor").NKIPyTensorRef


def tracer_version() -> str:
    """NKIPy's version, with the commit where it was installed from its repository: the version alone does not move."""
    found = distribution("nkipy")
    commit = json.loads(found.read_text("direct_url.json") or "{}").get("vcs_info", {}).get("commit_id")
    return f"{found.version} at {commit}" if commit else found.version


def _used(code: Any) -> set[str]:
    """Names of the parameters that an operation takes."""
    operands = {id(one) for operation in code.operations for one in operation.operands}
    pairs = zip(code.inputs, code.parameters, strict=True)
    return {one.original_name for one, tensor in pairs if id(tensor) in operands}


def _distinct(found: list[tuple[str, Any]]) -> list[Any]:
    """The tensors without repetition: a tensor that is returned twice is one output."""
    return list({id(one.backend_tensor): one for _, one in found}.values())


def _entering(tensor: Any, dtype: np.dtype) -> Any:
    return tensor != 0 if dtype == np.bool_ else tensor


def _leaving(tensor: Any) -> Any:
    return tensor.astype(np.uint8) if tensor.dtype == np.bool_ else tensor
