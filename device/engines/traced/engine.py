"""An engine whose arrays stay on its machine, and whose every computation is a traced program.

A kernel marked as a program is traced whole; inside the trace it sees NKIPy's tensors, so that the programs it
calls inline. A single NumPy call on such arrays is a program too. Indexing and reshaping outside any
program, which only move data, go through the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from parity.device.engines.traced.arguments import Skeleton, join, split
from parity.device.engines.traced.arrays import Array
from parity.device.engines.traced.tracer import Leaf, Program, edge, trace
from parity.device.sharding import Sharding

_NARROW = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.int64): np.dtype(np.int32)}


class Machine(Protocol):
    """Where programs run: buffers of its own, and executables; `versions` and `notes` as a device describes itself.

    Attributes:
        ranks: how many run every program; 1 where nothing is shared out.
    """

    name: str
    versions: dict[str, str]
    ranks: int

    @property
    def held(self) -> Sequence[int]:
        """The ranks whose arrays are in this process; a buffer is one array of each."""
        ...

    @property
    def notes(self) -> dict[str, str]:
        """What a reader of its results must know."""
        ...

    def put(self, parts: Sequence[np.ndarray]) -> Any:
        """A buffer with these arrays, one for each rank held; nobody changes them any more."""
        ...

    def get(self, buffer: Any) -> list[np.ndarray]:
        """The buffer's values of each rank held, read only."""
        ...

    def everywhere(self, parts: list[np.ndarray]) -> list[np.ndarray]:
        """One array for each rank, out of what each process has of the ranks it holds."""
        ...

    def spread(self, ranks: int) -> Machine:
        """A machine of this kind with this many ranks."""
        ...

    def load(self, program: Program) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """What runs a program: buffers of its arguments to buffers of all its HLO outputs, aliased ones included."""
        ...


class Engine:
    """`NAME`, `array`, `zeros` and `host` on one machine, and its own programs.

    A program is compiled once for each kernel, skeleton and shapes, and belongs to this engine alone: a kernel that was
    replaced for one device is never run by another.
    """

    arrays: type[Array] = Array
    """The class of its arrays' class."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.NAME, self.versions = machine, machine.name, machine.versions
        self.kind: type[Array] = type("Array", (self.arrays,), {"__slots__": (), "engine": self})
        self._programs: dict[Any, tuple[Program, Callable[..., Any]]] = {}
        self.whole = self.own_programs = True

    @property
    def programs(self) -> list[Program]:
        """What was compiled so far, in order."""
        return [program for program, _ in self._programs.values()]

    def notes(self) -> dict[str, str]:
        """What a reader of this engine's results must know."""
        return {"programs": f"{len(self._programs)}, traced by NKIPy"} | self.machine.notes

    def interpret(self) -> None:
        """From now on run kernels operation by operation, each one a program."""
        self.whole = False

    def spread(self, sharding: Sharding) -> Engine:
        """A new engine of this kind with tensor-parallel ranks.

        Raises:
            UsageError: the machine has no place for so many.
        """
        from parity.device.engines.traced.ranks import RankedEngine

        return RankedEngine(self.machine.spread(sharding.ranks), sharding)

    def array(self, value: np.ndarray, dtype: Any = None) -> Array:
        """Move a host array to every rank; floating values are rounded to `dtype` where one is given."""
        return self.held([value] * len(self.machine.held), dtype)

    def held(self, parts: Sequence[np.ndarray], dtype: Any = None) -> Array:
        """The same with an array of its own for each rank held."""
        value = parts[0]
        floating = value.dtype == ml_dtypes.bfloat16 or value.dtype.kind == "f"
        declared = np.dtype(dtype) if dtype is not None and floating else _NARROW.get(value.dtype, value.dtype)
        buffer = self.machine.put([part.astype(edge(declared)) for part in parts])
        return self.kind(buffer, value.shape, declared)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array of zeros."""
        return self.array(np.zeros(shape, np.dtype(dtype)))

    def host(self, value: Array) -> np.ndarray:
        """A copy on the host: float32, ml_dtypes bfloat16, int64 or bool."""
        return copied(self.values(value)[0])

    def wait(self, arrays: Sequence[Array]) -> None:
        """Wait until these are written."""
        for one in arrays:
            self.machine.get(one.buffer)

    def values(self, value: Array) -> list[np.ndarray]:
        """Each held rank's values in the declared dtype."""
        return [one.astype(value.dtype, copy=False) for one in self.machine.get(value.buffer)]

    def moved(self, move: Callable[..., np.ndarray], *operands: Any) -> Array:
        """`move` on the host, for each rank held; operands may be arrays, and tuples with arrays among them."""
        return self.held([move(*self._of(operands, place)) for place in range(len(self.machine.held))])

    def _of(self, operand: Any, place: int) -> Any:
        if isinstance(operand, tuple):
            return tuple(self._of(one, place) for one in operand)
        return self.values(operand)[place] if isinstance(operand, Array) else operand

    def run(self, kernel: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Call `kernel` as one program; arrays it writes to hold the new values afterwards."""
        named = signature(kernel).bind(*arguments).arguments
        skeleton, found = split(named, (self.kind, np.ndarray))
        found = [(path, self.array(one) if isinstance(one, np.ndarray) else one) for path, one in found]
        leaves = tuple(Leaf(f"in_{path}", one.shape, one.dtype) for path, one in found)
        program, execute = self._program(kernel, skeleton, leaves)
        given = [found[place][1] for place in program.taken]
        buffers = execute([one.buffer for one in given])
        for output, parameter in program.aliases.items():
            given[parameter].buffer = buffers[output]
        shapes = [tuple(one.shape) for one in program.code.outputs]
        made = (self.kind(buffers[number], shapes[number], dtype) for number, dtype in program.outputs)
        return join(program.result, made)

    def _program(self, kernel: Callable[..., Any], skeleton: Skeleton, leaves: tuple[Leaf, ...]) -> Any:
        key = kernel, skeleton, leaves
        if key not in self._programs:
            program = trace(kernel, skeleton, leaves, self.machine.ranks)
            self._programs[key] = program, self.machine.load(program)
        return self._programs[key]


def copied(value: np.ndarray) -> np.ndarray:
    """A copy as an engine's `host` gives it."""
    return value.astype(np.int64 if value.dtype.kind == "i" else value.dtype)
