"""Traced HLO over ranks on XLA:CPU: one device a rank, each a replica, so that replica groups mean ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parity.device.engines.traced import lowering


class Replicas:
    """The devices of a number of ranks.

    An array of all ranks is one of JAX's, "replicated" so that its shape is one rank's. What lies on each device is
    that rank's own all the same; the executables are all that ever takes it.

    Raises:
        UsageError: XLA has fewer devices.
    """

    def __init__(self, ranks: int) -> None:
        self.devices = lowering.devices(ranks)
        self._everywhere = NamedSharding(Mesh(np.array(self.devices), ("ranks",)), PartitionSpec())

    def put(self, parts: Sequence[np.ndarray]) -> jax.Array:
        """Each rank's array on its device."""
        return self._joined([lowering.buffer(part, on) for part, on in zip(parts, self.devices, strict=True)])

    def get(self, held: jax.Array) -> list[np.ndarray]:
        """Each rank's values, read only."""
        on = {shard.device: shard.data for shard in held.addressable_shards}
        return [np.asarray(on[one]) for one in self.devices]

    def compiled(self, module: Any) -> Callable[[Sequence[jax.Array]], list[jax.Array]]:
        """Compile a traced HLO module, as its proto, for all ranks together.

        Raises:
            UsageError: the module calls what only the hardware knows.
        """
        loaded = lowering.executable(module, self.devices)
        if len(self.devices) == 1:
            execute: Callable[[Sequence[jax.Array]], list[jax.Array]] = loaded.execute
            return execute

        def run(buffers: Sequence[jax.Array]) -> list[jax.Array]:
            results = loaded.execute_sharded(list(buffers)).disassemble_into_single_device_arrays()
            return [self._joined(parts) for parts in results]

        return run

    def _joined(self, parts: Sequence[jax.Array]) -> jax.Array:
        return jax.make_array_from_single_device_arrays(parts[0].shape, self._everywhere, list(parts))
