"""Between torch and the NumPy world of parity's taps."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import torch

from parity.seam import RowTap, Tap
from parity.trace import Trace

TorchTap = Callable[[str, torch.Tensor], torch.Tensor]


def ignore(stage: str, value: torch.Tensor) -> torch.Tensor:
    """The tap that neither records nor replaces."""
    return value


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy as NumPy; bfloat16 as ml_dtypes.bfloat16."""
    tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def to_torch(array: np.ndarray) -> torch.Tensor:
    """A copy as torch, dtype kept."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


class Wrapped:
    """A tap of parity's for torch: what it replaces comes back as torch, what it keeps stays the same tensor."""

    def __init__(self, tap: Tap):
        self.tap = tap
        self.passed: dict[str, list[np.ndarray]] = {}

    def __call__(self, stage: str, value: torch.Tensor) -> torch.Tensor:
        array = to_numpy(value)
        back = self.tap(stage, array)
        return value if back is array else to_torch(back)

    def recorded(self, prefix: str) -> dict[str, torch.Tensor]:
        """What an earlier, interrupted run recorded of these stages of the round; see `parity.trace.Trace.recorded`."""
        recorded = self.tap.recorded(prefix) if isinstance(self.tap, Trace) else {}
        return {stage: to_torch(value) for stage, value in recorded.items()}

    def rows(self, stage: str, value: torch.Tensor, first: int, total: int) -> torch.Tensor:
        """Rows `first` … of a stage whose rows come in several passes of a round; see `parity.seam.RowTap`.

        A tap that knows no such rows gets the whole stage with the last of them, and can replace only those.
        """
        array = to_numpy(value)
        if isinstance(self.tap, RowTap):
            back = self.tap.rows(stage, array, first, total)
            return value if back is array else to_torch(back)
        self.passed[stage] = [*(self.passed[stage] if first else ()), array]
        if first + len(array) < total:
            return value
        whole = np.concatenate(self.passed.pop(stage))
        back = self.tap(stage, whole)
        return value if back is whole else to_torch(back[first:])


def torch_tap(tap: Tap) -> Wrapped:
    """Wrap a tap of parity's."""
    return Wrapped(tap)
