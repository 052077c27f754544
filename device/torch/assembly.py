"""Puts checkpoints and options together into one pipeline on PyTorch."""

from __future__ import annotations

from pathlib import Path

from parity.device import check_precision
from parity.device.assembly import Models, assemble
from parity.device.drafter_config import Eagle3Config, PEagleConfig
from parity.device.engines import AnyEngine
from parity.device.engines.lanes import with_lanes
from parity.device.layerwise import LayeredTarget, layered
from parity.device.stored import StoredCheckpoint
from parity.device.torch import tensors
from parity.device.torch.models import TorchEagle3, TorchPEagle, TorchTarget
from parity.device.torch.pipeline import TorchPipeline
from parity.errors import UsageError

MODELS = Models(TorchTarget, {PEagleConfig: TorchPEagle, Eagle3Config: TorchEagle3}, TorchPipeline)


def load(target: Path, drafter: Path, k: int, precision: str, max_positions: int | None, batch: int) -> TorchPipeline:
    """Read both checkpoints and build the pipeline; arguments as for `parity.device.torch.load`."""
    check_precision(precision)
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise UsageError(f"batch: {batch!r} is no number of sequences, at least 1 is needed.")
    machine: AnyEngine = with_lanes(tensors, batch) if batch > 1 else tensors
    made = assemble(target, drafter, k, precision, machine, max_positions, read=StoredCheckpoint, models=MODELS)
    assert isinstance(made, TorchPipeline)
    return made


def layers(target: Path, drafter: Path, k: int, precision: str, max_positions: int | None) -> LayeredTarget:
    """The target's layers one at a time; arguments as for `parity.device.torch.layered`."""
    check_precision(precision)
    options = dict(max_positions=max_positions, read=StoredCheckpoint, models=MODELS)
    return layered(target, drafter, k, precision, tensors, **options)
