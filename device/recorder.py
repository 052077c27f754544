"""Between the kernels and parity's tap: full stage names, logical rows, host arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from parity.device.engines import AnyEngine, from_hosts, to_hosts
from parity.device.kernels.tap import Tap as LayerTap
from parity.device.kernels.tap import untapped
from parity.device.sharding import Sharding
from parity.errors import UsageError
from parity.seam import RankTap, RowTap, SketchTap, Tap
from parity.stages import TABLE

# `drafter.attn_out` to `drafter.layers.{l}.attn_out`, `kv.target.k` to `kv.target.{l}.k`: names are made in the table.
_TEMPLATES = {one.template.replace("layers.", "").replace("{l}.", ""): one.template for one in TABLE}


class Recorder:
    """Hands stages to one tap and takes back what the pass continues with.

    Args:
        tap: parity's tap, which may say that nobody watches (`parity.seam.UNWATCHED`); None where there is none.
        engine: the module that made the arrays.
    """

    def __init__(self, tap: Tap | None, engine: AnyEngine) -> None:
        self._unwatched: bool = getattr(tap, "unwatched", False)
        self._tap, self._engine = None if self._unwatched else tap, engine
        self._sharding: Sharding | None = getattr(engine, "sharding", None)
        self._passed: dict[str, list[np.ndarray]] = {}

    def part(self, first: int, count: int, total: int) -> Recorder:
        """The same for a pass that computes `count` rows from `first` on of a stage's `total` rows in this round."""
        if self._tap is None or count == total:
            return self
        return Recorder(_Part(self._tap, first, total, self._passed), self._engine)

    def bind(self, group: str, rows: int, layer: int | None = None) -> LayerTap:
        """The tap of one layer or pass; only its first `rows` rows are logical, the rest is padding."""
        if self._tap is None:
            return untapped
        return _Bound(self, self._tap, group, rows, layer)

    def exact(self, group: str, part: str, value: np.ndarray) -> np.ndarray:
        """Hand over integers that live on the host: int64 [n] in and out."""
        value = np.asarray(value, np.int64)
        return value if self._tap is None else self._ask(self._tap, _name(group, part), [value])[0]

    def ids(self, group: str, part: str, value: Any, rows: int) -> np.ndarray:
        """Hand over the first `rows` of ids [1, W] that the engine chose; int64 [rows] on the host.

        In service, where nobody watches, ranks that chose differently continue so; the host reads the first one's.

        Raises:
            RuntimeError: the ranks chose differently, and there is no tap.
        """
        stage = _name(group, part)
        shards = [one[0, :rows].astype(np.int64) for one in to_hosts(self._engine, self._sharding, value)]
        if self._tap is None:
            if self._sharding is None or self._unwatched:
                return shards[0]
            return self._sharding.merge(stage, shards)
        return self._ask(self._tap, stage, shards)[0]

    def rows(self, group: str, part: str, layer: int, cache: Any, length: int) -> bool:
        """Hand over a cache's first `length` rows, [length, G, D]; what comes back is loaded into it.

        They keep their batch axis on the way: without it an engine with lanes takes as many rows for them.

        Returns:
            whether that was anything else.
        """
        if self._tap is None:
            return False
        given = [one[0] for one in to_hosts(self._engine, self._sharding, cache[:1, :length])]
        taken = self._ask(self._tap, _name(group, part, layer), given)
        cache[:, :length] = from_hosts(self._engine, self._sharding, [one[None] for one in taken], cache.dtype)
        return not all(map(np.array_equal, given, taken))

    def exchange(self, tap: Tap, stage: str, value: Any, rows: int) -> Any:
        """Hand the logical rows of `value` to `tap`; the value to continue with, padding unchanged.

        Where the tap takes a sketch and the engine makes one, nothing else is read back.
        """
        if self._sharding is None and isinstance(tap, SketchTap) and hasattr(self._engine, "sketch"):
            shape = (rows, *value.shape[2:])
            table = tap.projection(stage, prod(shape[1:]))
            if table is not None:
                sums, squares = self._engine.sketch(value, table)
                taken = tap.sketch(stage, sums[:rows], squares[:rows], shape, value.dtype.name)
                return value if taken is None else self._replaced(stage, value, taken, rows)
        given = to_hosts(self._engine, self._sharding, value)
        # A copy: an observer may keep what it is shown, or write to it and return another tensor.
        for one, taken in zip(given, self._ask(tap, stage, [one[0, :rows].copy() for one in given]), strict=True):
            one[0, :rows] = taken
        return from_hosts(self._engine, self._sharding, given, value.dtype)

    def _replaced(self, stage: str, value: Any, taken: np.ndarray, rows: int) -> Any:
        """The value with other logical rows."""
        (whole,) = to_hosts(self._engine, None, value)
        whole[0, :rows] = _fitting(stage, taken, whole[0, :rows])
        return from_hosts(self._engine, None, [whole], value.dtype)

    def _ask(self, tap: Tap, stage: str, shards: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What the tap makes of a stage, each rank's part of it."""
        if self._sharding is None or len(shards) == 1:
            return [_fitting(stage, tap(stage, shards[0]), shards[0])]
        taken: Sequence[np.ndarray]
        if isinstance(tap, RankTap):
            taken = tap.ranks(stage, shards, self._sharding.stage(stage))
        else:
            whole = self._sharding.merge(stage, shards)
            taken = self._sharding.split(stage, _fitting(stage, tap(stage, whole), whole))
        return [_fitting(stage, *pair) for pair in zip(taken, shards, strict=True)]


def _fitting(stage: str, taken: Any, given: np.ndarray) -> np.ndarray:
    """What came back, in the dtype it was given in."""
    array = np.asarray(taken)
    if array.shape != given.shape:
        raise UsageError(f"stage {stage}: the tap returned shape {list(array.shape)} for {list(given.shape)}.")
    return array.astype(given.dtype, copy=False)


@dataclass(frozen=True)
class _Part:
    """A tap for some rows of a stage; one that knows no such rows gets the whole stage with the last of them."""

    tap: Tap
    first: int
    total: int
    passed: dict[str, list[np.ndarray]]

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        if isinstance(self.tap, RowTap):
            return self.tap.rows(stage, value, self.first, self.total)
        rows = self.passed[stage] = [*(self.passed[stage] if self.first else ()), value]
        if self.first + len(value) < self.total:
            return value
        return np.asarray(self.tap(stage, np.concatenate(rows)))[self.first :]


@dataclass(frozen=True)
class _Bound:
    """A recorder's tap for one group of stages, one number of logical rows and one layer."""

    record: Recorder
    tap: Tap
    group: str
    rows: int
    layer: int | None

    def __call__(self, part: str, value: Any) -> Any:
        return self.record.exchange(self.tap, _name(self.group, part, self.layer), value, self.rows)

    def at(self, layer: int) -> LayerTap:
        return replace(self, layer=layer)

    def of(self, group: str) -> LayerTap:
        return replace(self, group=group)


def _name(group: str, part: str, layer: int | None = None) -> str:
    return _TEMPLATES[f"{group}.{part}"].format(l=layer)
