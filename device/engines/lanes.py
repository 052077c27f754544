"""An engine that runs copies of the sequence as one batch: company in every matrix multiplication."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np


def with_lanes(machine: ModuleType | SimpleNamespace, lanes: int) -> SimpleNamespace:
    """`machine` with a batch of `lanes`.

    A lane is made of every host array with a B axis of 1; lane 0 comes back. Prompts must be longer than
    `lanes` tokens: a cache row count equal to it would be taken for the batch.
    """

    def array(value: np.ndarray, dtype: Any = None) -> Any:
        batched = value.ndim > 1 and value.shape[0] == 1
        return machine.array(np.repeat(value, lanes, axis=0) if batched else value, dtype)

    def zeros(shape: tuple[int, ...], dtype: Any) -> Any:
        return machine.zeros((lanes * shape[0], *shape[1:]), dtype)

    def host(value: Any) -> np.ndarray:
        batched = lanes > 1 and value.shape[:1] == (lanes,)
        return machine.host(value[:1] if batched else value)

    offered = {name: getattr(machine, name) for name in ("versions", "notes", "interpret") if hasattr(machine, name)}
    return SimpleNamespace(**vars(machine) | offered | dict(array=array, zeros=zeros, host=host))
