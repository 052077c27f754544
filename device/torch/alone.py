"""Parts of a pass alone: the rotary embedding of a config, one matrix product."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from parity.device.rotary import read_rotary
from parity.device.torch import attention
from parity.device.torch.tensors import array, host


def rotate(folder: Path, side: str, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rotate x [S, N, D], float32, at positions [S] as this side's q and k; see `parity.seam.Rotary`."""
    axes, count = read_rotary(folder, side, positions)
    turns = attention.turns(axes.rope, axes.head_dim, count)
    rotated: np.ndarray = host(attention.rotate(array(x[None]), turns[array(positions)]))[0]
    return rotated


def multiply(left: np.ndarray, right: np.ndarray, dtype: str) -> np.ndarray:
    """left [(batch,) M, K] times right [(batch,) K, N]; see `parity.seam.Multiply`."""
    operands = array(left), array(right)
    if dtype == "float32":
        return host(torch.matmul(*(one.float() for one in operands)))
    return host(torch.matmul(*operands))
