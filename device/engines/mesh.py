"""Tensor-parallel ranks on a mesh of XLA devices: one program over all of them, collectives by XLA.

Outside a program every rank's array lies on a device of its own and operations go in lockstep, as for any ranks. A
program takes them as one array, sharded by rank along its first axis, and is the same kernel under `shard_map`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parity.device.engines import cpu_devices, xla_engine
from parity.device.engines.programs import Programs
from parity.device.engines.ranks import Ranks, met
from parity.device.kernels.collectives import Groups
from parity.device.sharding import Sharding

AXIS = "ranks"


class Local(xla_engine.Array):
    """One rank's array; within a program it reaches the other ranks'."""

    __slots__ = ()

    def all_reduce(self, groups: Groups) -> Local:
        """See `parity.device.kernels.collectives`."""
        return type(self)(lax.psum(self.held, AXIS, axis_index_groups=groups), self.dtype)

    def all_gather(self, axis: int, groups: Groups) -> Local:
        """See `parity.device.kernels.collectives`."""
        gathered = lax.all_gather(self.held, AXIS, axis=axis % self.ndim, axis_index_groups=groups, tiled=True)
        return type(self)(gathered, self.dtype)


class Spread(Ranks):
    """Each rank's array on its device."""

    __slots__ = ()
    programs: ClassVar[Programs]
    mesh: ClassVar[Mesh]
    local: ClassVar[type[Local]]

    @classmethod
    def of(cls, value: jax.Array, dtype: np.dtype) -> Spread:
        """The ranks of an array that a program made."""
        return cls(cls._apart(value, dtype))

    @classmethod
    def inside(cls, tracer: Any, dtype: np.dtype) -> Local:
        """A rank's array within a program."""
        return cls.local(tracer, dtype)

    @classmethod
    def spread(cls, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The same on every rank of the mesh."""
        spec = PartitionSpec(AXIS)
        return jax.shard_map(kernel, mesh=cls.mesh, in_specs=spec, out_specs=spec, check_vma=False)

    @classmethod
    def run_program(cls, kernel: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Compiled once for each signature; see `parity.device.kernels.program`."""
        return cls.programs.run(cls, kernel, arguments)

    @property
    def held(self) -> jax.Array:
        """All ranks as one array, their first axes one behind the other; what lies where it should is not copied."""
        here = [jax.device_put(part.held, one) for part, one in zip(self.parts, self.mesh.devices, strict=True)]
        whole = len(here) * here[0].shape[0], *here[0].shape[1:]
        return jax.make_array_from_single_device_arrays(whole, NamedSharding(self.mesh, PartitionSpec(AXIS)), here)

    @held.setter
    def held(self, value: jax.Array) -> None:
        self.parts = self._apart(value, self.dtype)

    @classmethod
    def _apart(cls, value: jax.Array, dtype: np.dtype) -> tuple[Local, ...]:
        on = {shard.device: shard.data for shard in value.addressable_shards}
        return tuple(cls.local(on[one], dtype) for one in cls.mesh.devices)

    def all_reduce(self, groups: Groups) -> Spread:
        """As within a program, for a pass that is not compiled."""
        return self._met(groups, lambda parts: np.asarray(sum(parts)))

    def all_gather(self, axis: int, groups: Groups) -> Spread:
        """As within a program, for a pass that is not compiled."""
        return self._met(groups, lambda parts: np.concatenate(parts, axis=axis))

    def _met(self, groups: Groups, join: Callable[[list[np.ndarray]], np.ndarray]) -> Spread:
        values = met([np.array(part.held) for part in self.parts], groups, join)
        places = zip(values, self.mesh.devices, strict=True)
        return type(self)([self.local(jax.device_put(value, one), self.dtype) for value, one in places])


def engine(sharding: Sharding) -> SimpleNamespace:
    """The xla engine over as many devices as there are ranks; offers what `parity.device.engines.ranks` does.

    Raises:
        UsageError: XLA has too few devices.
    """
    devices = cpu_devices.one_each(jax.devices(), sharding.ranks)
    base = xla_engine.engine(Local)
    mesh = Mesh(np.array(devices), (AXIS,))
    kind: type[Spread] = type(
        "Spread", (Spread,), {"__slots__": (), "programs": base.programs, "mesh": mesh, "local": base.kind}
    )

    def array(value: np.ndarray, dtype: Any = None) -> Spread:
        return shard([value] * sharding.ranks, dtype)

    def zeros(shape: tuple[int, ...], dtype: Any) -> Spread:
        return shard([np.zeros(shape, np.float32)] * sharding.ranks, dtype)

    def shard(parts: Sequence[np.ndarray], dtype: Any = None) -> Spread:
        made = [base.array(part, dtype) for part in parts]
        pairs = zip(made, mesh.devices, strict=True)
        return kind(
            [
                one if one.dtype.kind in "iub" else base.kind(jax.device_put(one.held, on), one.dtype)
                for one, on in pairs
            ]
        )

    def hosts(value: Spread) -> list[np.ndarray]:
        return [base.host(part) for part in value.parts]

    def wait(arrays: Sequence[Spread]) -> None:
        base.wait([part for one in arrays for part in one.parts])

    changed = dict(array=array, zeros=zeros, host=lambda value: base.host(value.parts[0]), wait=wait)
    added = dict(NAME=f"{base.NAME}, tp {sharding.ranks}", shard=shard, hosts=hosts, sharding=sharding)
    return SimpleNamespace(**vars(base) | changed | added)
