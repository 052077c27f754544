"""A second device: the same models through PyTorch's fused attention and grouped matrix products.

On CUDA where there is a GPU, on the CPU otherwise. It shares with `parity.device` what reads checkpoint and config, and
the host loop (rows, rounds, commit); every kernel is its own, written from the equations.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from parity.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from parity.device.layerwise import LayeredTarget
    from parity.device.torch.pipeline import TorchPipeline

NAME = "torch"
"""On the command line and in a run's manifest."""


def load(
    target: str | Path,
    drafter: str | Path,
    k: int,
    precision: str = "bfloat16",
    max_positions: int | None = None,
    batch: int = 1,
    prefill_rows: int | None = None,
) -> TorchPipeline:
    """Load a pair of checkpoints as a `parity.seam.Device`; arguments as for `parity.device.load`.

    Raises:
        UsageError: torch is not installed, or an option or a checkpoint does not fit.
    """
    if prefill_rows is not None and prefill_rows < 1:
        raise UsageError(f"prefill_rows: {prefill_rows!r} is no number of rows, at least 1 is needed.")
    pipeline: TorchPipeline = _module("assembly").load(Path(target), Path(drafter), k, precision, max_positions, batch)
    pipeline.prefill_rows = prefill_rows
    return pipeline


def layered(
    target: str | Path,
    drafter: str | Path,
    k: int,
    precision: str = "bfloat16",
    max_positions: int | None = None,
) -> LayeredTarget:
    """Open a pair of checkpoints as a `parity.seam.Layered`; arguments as for `load`."""
    made: LayeredTarget = _module("assembly").layers(Path(target), Path(drafter), k, precision, max_positions)
    return made


def rotate(folder: Path, side: str, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rotate head vectors as a pass of this side under this config.json would; a `parity.seam.Rotary`.

    Raises:
        UsageError: torch is not installed, or the config or a position is none that this device knows.
    """
    rotated: np.ndarray = _module("alone").rotate(folder, side, x, positions)
    return rotated


def multiply(left: np.ndarray, right: np.ndarray, dtype: str) -> np.ndarray:
    """Multiply as the linear layers of a pass do; a `parity.seam.Multiply`."""
    product: np.ndarray = _module("alone").multiply(left, right, dtype)
    return product


def absent(_name: str) -> str | None:
    """Why this device cannot run here; None where it can."""
    try:
        _module("tensors")
    except UsageError as error:
        return str(error)
    return None


def _module(name: str) -> ModuleType:
    """A module of this package; each imports torch, which this one does not."""
    try:
        return import_module(f"parity.device.torch.{name}")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the device torch needs {error.name}: pip install 'parity-harness[torch]' -c constraints.txt"
        ) from None
