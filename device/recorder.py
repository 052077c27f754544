"""Between the kernels and parity's tap: full stage names, logical rows, host arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from device.kernels.tap import Tap as LayerTap
from device.kernels.tap import untapped
from parity.errors import UsageError
from parity.seam import Tap
from parity.stages import TABLE

# `drafter.attn_out` to `drafter.layers.{l}.attn_out`, `kv.target.k` to `kv.target.{l}.k`: names are made in the table.
_TEMPLATES = {one.template.replace("layers.", "").replace("{l}.", ""): one.template for one in TABLE}


class Recorder:
    """Hands stages to one tap and takes back what the pass goes on with.

    Args:
        tap: parity's tap, or None where nobody watches.
        engine: the module that made the arrays.
    """

    def __init__(self, tap: Tap | None, engine: ModuleType) -> None:
        self._tap, self._engine = tap, engine

    def bind(self, group: str, rows: int, layer: int | None = None) -> LayerTap:
        """The tap of one layer or pass; only its first `rows` rows are logical, the rest is padding."""
        if self._tap is None:
            return untapped
        return _Bound(self, group, rows, layer)

    def exact(self, group: str, part: str, value: np.ndarray) -> np.ndarray:
        """Hand over integers that live on the host: int64 [n] in and out."""
        value = np.asarray(value, np.int64)
        return value if self._tap is None else self._ask(_name(group, part), value)

    def rows(self, group: str, part: str, layer: int, cache: Any, length: int) -> None:
        """Hand over a cache's first `length` rows, [length, G, D]; what comes back is loaded into it."""
        if self._tap is not None:
            taken = self._ask(_name(group, part, layer), self._engine.host(cache[0, :length]))
            cache[0, :length] = self._engine.array(taken, cache.dtype)

    def exchange(self, stage: str, value: Any, rows: int) -> Any:
        """Hand over the logical rows of `value`; the value to go on with, padding unchanged."""
        given = self._engine.host(value)
        # A copy: an observer may keep what it is shown, or write to it and return another tensor.
        given[0, :rows] = self._ask(stage, given[0, :rows].copy())
        return self._engine.array(given, value.dtype)

    def _ask(self, stage: str, value: np.ndarray) -> np.ndarray:
        taken = np.asarray(self._tap(stage, value))
        if taken.shape != value.shape:
            raise UsageError(f"stage {stage}: the tap returned shape {list(taken.shape)} for {list(value.shape)}.")
        return taken.astype(value.dtype, copy=False)


@dataclass(frozen=True)
class _Bound:
    """A recorder's tap for one group of stages, one number of logical rows and one layer."""

    record: Recorder
    group: str
    rows: int
    layer: int | None

    def __call__(self, part: str, value: Any) -> Any:
        return self.record.exchange(_name(self.group, part, self.layer), value, self.rows)

    def at(self, layer: int) -> LayerTap:
        return replace(self, layer=layer)

    def of(self, group: str) -> LayerTap:
        return replace(self, group=group)


def _name(group: str, part: str, layer: int | None = None) -> str:
    return _TEMPLATES[f"{group}.{part}"].format(l=layer)
