"""Between host arrays and tensors: the place where they lie, their dtypes, and what a run says of both."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from parity.device.mxfp4 import Packed
from parity.device.stored import release, stays
from parity.device.torch import NAME as NAME

PLACE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
versions = {"torch": version("torch")}
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_DTYPES = {_BFLOAT16: torch.bfloat16, np.dtype(np.float32): torch.float32}


def notes() -> dict[str, str]:
    """Where it computes."""
    return {"platform": PLACE.type if PLACE.type == "cpu" else torch.cuda.get_device_name(PLACE)}


def array(value: Any, dtype: Any = None) -> Tensor:
    """A copy of a host array as a tensor; floating values are rounded to `dtype` where one is given.

    Matrices of experts that are packed in their file are decoded one at a time; the file's pages go when it is read.
    """
    if isinstance(value, Packed):
        tensor = torch.empty(value.shape, dtype=_dtype(dtype or value.dtype), device=PLACE)
        for expert in range(len(tensor)):
            tensor[expert] = _copied(value[expert], dtype)
    else:
        tensor = _copied(value, dtype)
    if stays(value):
        release(value)
    return tensor


def _copied(value: np.ndarray, dtype: Any) -> Tensor:
    given = np.require(value, requirements=["C", "W"])
    tensor = torch.from_numpy(given.view(np.int16)).view(torch.bfloat16) if given.dtype == _BFLOAT16 else None
    tensor = torch.from_numpy(given) if tensor is None else tensor
    if tensor.is_floating_point():
        return tensor.to(PLACE, _dtype(dtype) or tensor.dtype, copy=True)
    return tensor.to(PLACE, torch.bool if tensor.dtype == torch.bool else torch.int64, copy=True)


def zeros(shape: tuple[int, ...], dtype: Any) -> Tensor:
    """A tensor of zeros."""
    return torch.zeros(shape, dtype=_dtype(dtype), device=PLACE)


def host(value: Tensor) -> np.ndarray:
    """A copy on the host: float32, ml_dtypes bfloat16, int64 or bool."""
    held = value.detach().to("cpu", copy=True).contiguous()
    if held.dtype == torch.bfloat16:
        return held.view(torch.int16).numpy().view(_BFLOAT16)
    values: np.ndarray = held.numpy()
    return values


def wait(_arrays: Sequence[Tensor]) -> None:
    """Wait until everything that was sent to a GPU has run; on the CPU nothing is still running."""
    if PLACE.type == "cuda":
        torch.cuda.synchronize(PLACE)


def _dtype(dtype: Any) -> torch.dtype | None:
    """A dtype of the host, or a tensor's own, as a tensor's."""
    return dtype if dtype is None or isinstance(dtype, torch.dtype) else _DTYPES[np.dtype(dtype)]
