"""An engine that runs copies of the sequence as one batch: company in every matrix multiplication."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from parity.device.engines import AnyEngine, with_ranks


def with_lanes(machine: AnyEngine, lanes: int) -> SimpleNamespace:
    """`machine` with a batch of `lanes`.

    A lane is made of every host array with a B axis of 1; lane 0 comes back. Every array has its B axis in front:
    without it, as many rows would be taken for the lanes.
    """

    def repeated(value: np.ndarray) -> np.ndarray:
        return np.repeat(value, lanes, axis=0) if value.ndim > 1 and value.shape[0] == 1 else value

    def first(value: Any) -> Any:
        return value[:1] if lanes > 1 and value.shape[:1] == (lanes,) else value

    def array(value: np.ndarray, dtype: Any = None) -> Any:
        return machine.array(repeated(value), dtype)

    def zeros(shape: tuple[int, ...], dtype: Any) -> Any:
        return machine.zeros((lanes * shape[0], *shape[1:]), dtype)

    def host(value: Any) -> np.ndarray:
        held: np.ndarray = machine.host(first(value))
        return held

    changed = {
        name: getattr(machine, name) for name in ("versions", "notes", "interpret", "wait") if hasattr(machine, name)
    }
    changed |= dict(array=array, zeros=zeros, host=host)
    if hasattr(machine, "spread"):
        changed["spread"] = lambda sharding: with_lanes(machine.spread(sharding), lanes)
    if hasattr(machine, "shard"):
        changed["shard"] = lambda parts, dtype=None: with_ranks(machine).shard(
            [repeated(part) for part in parts], dtype
        )
        changed["hosts"] = lambda value: with_ranks(machine).hosts(first(value))
    return SimpleNamespace(**vars(machine) | changed)
