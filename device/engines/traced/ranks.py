"""A traced engine with tensor-parallel ranks: every program is one for all of them, with NKIPy's collectives inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parity.device.engines.traced import collectives
from parity.device.engines.traced.arrays import Array
from parity.device.engines.traced.engine import Engine, Machine, copied
from parity.device.kernels.collectives import Groups, all_gather, all_reduce
from parity.device.sharding import Sharding


class Spread(Array):
    """Each rank's array; the shape is one rank's."""

    __slots__ = ()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError("an array of ranks goes to the host through the engine")

    def all_reduce(self, groups: Groups) -> Spread:
        """As a program of its own; see `parity.device.kernels.collectives`."""
        total: Spread = self.engine.run(all_reduce, (self, groups))
        return total

    def all_gather(self, axis: int, groups: Groups) -> Spread:
        """As a program of its own; see `parity.device.kernels.collectives`."""
        whole: Spread = self.engine.run(all_gather, (self, axis, groups))
        return whole


class RankedEngine(Engine):
    """An engine whose machine holds ranks; offers what `parity.device.engines.ranks` does."""

    arrays = Spread

    def __init__(self, machine: Machine, sharding: Sharding) -> None:
        super().__init__(machine)
        self.sharding = sharding
        self.NAME = f"{machine.name}, tp {sharding.ranks}"

    def notes(self) -> dict[str, str]:
        """What a reader of this engine's results must know, its programs' collectives among it."""
        found = [one for program in self.programs for one in program.collectives]
        return super().notes() | {"collectives": collectives.told(found)}

    def shard(self, parts: Sequence[np.ndarray], dtype: Any = None) -> Array:
        """One host array a rank to an array; floating values are rounded to `dtype` where one is given."""
        return self.held([parts[rank] for rank in self.machine.held], dtype)

    def hosts(self, value: Array) -> list[np.ndarray]:
        """An array to one host array a rank."""
        return [copied(part) for part in self.machine.everywhere(self.values(value))]
