"""Between torch and the NumPy world of parity's taps."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import torch

from parity.seam import Tap

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


def torch_tap(tap: Tap) -> TorchTap:
    """Wrap a tap of parity's: what it replaces comes back as torch, what it keeps stays the same tensor."""

    def wrapped(stage: str, value: torch.Tensor) -> torch.Tensor:
        array = to_numpy(value)
        back = tap(stage, array)
        return value if back is array else to_torch(back)

    return wrapped
