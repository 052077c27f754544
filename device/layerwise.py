"""The target on an engine one layer at a time: a `parity.seam.Layered`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from parity.device.assembly import assemble
from parity.device.checkpoint import Checkpoint, Tensors
from parity.device.engines import AnyEngine
from parity.device.pipeline import Pipeline
from parity.device.recorder import Recorder
from parity.device.rows import pad_rows, round_up
from parity.device.weights import target_layer_weights
from parity.seam import Description, Tap


class LayeredTarget:
    """A pipeline whose target holds one layer, and whose drafter none.

    Args:
        files: the target's checkpoint.
        pipeline: without weights.
    """

    def __init__(self, files: Tensors, pipeline: Pipeline) -> None:
        self._files, self._pipeline, self._target = files, pipeline, pipeline.target
        self._says, self._layer = pipeline.describe(), 0  # said while it has the windows of all layers

    def describe(self) -> Description:
        """What this device is."""
        return self._says

    def open(self, layer: int) -> None:
        """See `parity.seam.Layered`."""
        self._target.hold([], ())  # the one before goes first
        weights = target_layer_weights(self._files, self._target.config, layer)
        self._target.hold([weights], self._target.config.windows[layer : layer + 1])
        self._layer = layer

    def clear(self) -> None:
        """See `parity.seam.Layered`."""
        self._target.clear()

    def forward(self, x: np.ndarray, tap: Tap) -> None:
        """See `parity.seam.Layered`."""
        target, engine, count = self._target, self._pipeline.engine, len(x)
        positions = target.length + np.arange(count)
        width = count if target.length else round_up(count, self._pipeline.prompt_bucket)
        rows = pad_rows(np.zeros(count, np.int64), positions, positions, width, target.trash)
        stream = np.zeros((1, width, x.shape[-1]), np.float32)
        stream[0, :count] = x
        shown = Recorder(tap, engine).bind(target.side, count).at(self._layer)
        target.layer(0, engine.array(stream, target.dtype), target.step(rows), shown)

    def keep(self, length: int, tap: Tap) -> None:
        """See `parity.seam.Layered`."""
        self._target.rollback(length)
        record = Recorder(tap, self._pipeline.engine)
        for part, cache in zip("kv", self._target.caches[0], strict=True):
            record.rows(f"kv.{self._target.side}", part, self._layer, cache, length)


def layered(target: Path, drafter: Path, k: int, precision: str, engine: AnyEngine, **options: Any) -> LayeredTarget:
    """Read both configs, and no weights yet; arguments as for `parity.device.assembly.assemble`."""
    read: type[Tensors] = options.setdefault("read", Checkpoint)
    made = assemble(target, drafter, k, precision, engine, weights=(_none, _none), **options)
    return LayeredTarget(read(target), made)


def _none(*_: Any) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """No weights, outside layers and in them."""
    return {}, []
