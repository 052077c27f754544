"""What target and drafter have in common: weights and caches on an engine, and the step of a pass."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any, Self

import numpy as np

from parity.device.config import Attention
from parity.device.engines import AnyEngine, from_hosts, to_hosts, widest
from parity.device.kernels import cache, quantised
from parity.device.kernels.rope import tables
from parity.device.kernels.round import Parts
from parity.device.kernels.step import make_step
from parity.device.recorder import Recorder
from parity.device.rope_config import RopeConfig
from parity.device.rows import SPAN_BUCKET, Rows, refuse_outside, round_up
from parity.device.sampler import Sampler
from parity.device.sharding import Sharding
from parity.device.weights import Weights, convert

Saved = tuple[list[tuple[list[np.ndarray], ...]], int]
"""Each layer's keys and values, rank by rank, and the length."""


SCALES = ("k_scale", "v_scale")
"""Of caches; they stay in float32."""


class Model:
    """Weights and static caches of one model.

    Args:
        weights: of the model outside its layers, and of each layer.
        attention: its axes and RoPE.
        windows: of each layer, None for full attention.
        positions: P; the caches have one row more, the trash slot.
    """

    side = ""
    config: Any
    sampler: Sampler | None = None
    state: tuple[str, ...] = ("caches", "length")
    """What a verb that raises puts back."""
    span_bucket = SPAN_BUCKET
    reach = 0
    """Rows that a pass sees at the least, as masks go: the more, the wider the arrays of its attention."""
    make_step = staticmethod(make_step)

    def __init__(
        self,
        weights: tuple[Weights, list[Weights]],
        attention: Attention,
        windows: tuple[int | None, ...],
        positions: int,
        engine: AnyEngine,
        dtype: np.dtype,
    ) -> None:
        self.engine, self.dtype, self.positions = engine, dtype, positions
        self.cache_dtype = quantised.FORMATS.get(self.kv_format, dtype)
        self._attention = attention
        outer, layers = weights
        self.sharding: Sharding | None = getattr(engine, "sharding", None)
        self.outer = convert(outer, self._place)
        self.turn(attention.rope)
        self.hold(layers, windows)

    def hold(self, layers: list[Weights], windows: tuple[int | None, ...]) -> None:
        """Take these layers in the place of any others, with empty caches."""
        self.layers: list[dict[str, Any]] = []  # the others go before these come
        self.windows = windows
        self.layers = [convert(layer, self._place) for layer in layers]
        self.clear()

    def lane(self, engine: AnyEngine) -> Self:
        """The same weights with caches of its own, on an engine of one lane."""
        mine = copy(self)
        mine.engine, mine.outer, mine.layers = engine, dict(self.outer), [dict(layer) for layer in self.layers]
        mine.clear()
        return mine

    @property
    def kv_format(self) -> str:
        """What its caches keep; empty for the dtype of the pass."""
        return str(self.config.kv_format)

    @property
    def trash(self) -> int:
        """The slot that padding rows write."""
        return self.positions

    def turn(self, rope: RopeConfig) -> None:
        """Rotate by this RoPE."""
        self.rope = rope
        # The tables stay in float32: bfloat16 angles would turn the far positions.
        cos, sin = tables(rope, self._attention.head_dim, self.positions)
        self.tables: tuple[Any, Any] = self.engine.array(cos), self.engine.array(sin)

    def clear(self) -> None:
        """Start a new sequence: all cache rows zero."""
        kv_heads = self.sharding.local_kv_heads(self.side) if self.sharding else self._attention.kv_heads
        shape = (1, self.positions + 1, kv_heads, self._attention.head_dim)
        zeros = self.engine.zeros
        self.caches = [(zeros(shape, self.cache_dtype), zeros(shape, self.cache_dtype)) for _ in self.layers]
        self.length = 0

    def rollback(self, length: int) -> None:
        """Keep the first `length` rows of every cache and clear what is behind them."""
        lengths = self.engine.array(np.array([length]))
        self.caches = cache.rolled_back(lengths, self.caches)
        self.length = length

    def off_load(self) -> Saved:
        """Caches and length, on the host."""
        saved = [tuple(to_hosts(self.engine, self.sharding, one) for one in pair) for pair in self.caches]
        return saved, self.length

    def load(self, saved: Saved) -> None:
        """Put back what `off_load` gave."""
        held, self.length = saved
        load = partial(from_hosts, self.engine, self.sharding, dtype=self.cache_dtype)
        self.caches = [(load(keys), load(values)) for keys, values in held]

    def poison(self, value: float) -> None:
        """Put `value` into every cache row at or behind the length, the trash slot included."""
        for one in (one for pair in self.caches for one in pair):
            one[:, self.length :] = self.engine.array(np.full((1, 1, 1, 1), value, np.float32), self.cache_dtype)

    def record(self, record: Recorder) -> bool:
        """Show every cache's rows [0, length) and the length; whether what comes back, and is loaded, is another."""
        group, length = f"kv.{self.side}", self.length
        changed = [
            self._shown(record, group, part, layer, one)
            for layer, pair in enumerate(self.caches)
            for part, one in zip("kv", pair, strict=True)
        ]
        self.length = int(record.exact(group, "length", np.array([length]))[0])
        return any(changed)

    def _shown(self, record: Recorder, group: str, part: str, layer: int, one: Any) -> bool:
        """Show the rows of one cache as attention reads them; whether others were loaded."""
        if not self.kv_format:
            return record.rows(group, part, layer, one, self.length)
        scale = self.layers[layer][f"{part}_scale"]
        rows = quantised.widened(one[:, : self.length], scale, self.dtype)
        changed = record.rows(group, part, layer, rows, self.length)
        if changed:
            one[:, : self.length] = quantised.scaled(rows, scale, self.kv_format)
        return changed

    def step(self, rows: Rows) -> Any:
        """Masks, rotations and slots of this pass, as its kernels take them."""
        span = widest(self.engine, self.span(max(int(rows.positions.max()) + 1, self.reach)))
        refuse_outside(self.side, "position", rows.positions, self.positions)
        refuse_outside(self.side, "slot", rows.slots, self.trash + 1)
        array = self.engine.array
        return self.make_step(array(rows.positions), array(rows.slots), self.tables, span, self.windows)

    def span(self, rows: int) -> int:
        """Cache rows that a pass sees which needs so many: a static size, of which there are few."""
        return min(self.positions, round_up(rows, self.span_bucket))

    @property
    def parts(self) -> Parts:
        """Its arrays, for a program that runs all of it."""
        return Parts(self.outer, self.layers, self.caches, self.tables)

    def _place(self, name: str, value: np.ndarray) -> Any:
        parts = self.sharding.weight(self.side, name, value) if self.sharding else None
        dtype = np.float32 if name in SCALES else self.dtype
        return from_hosts(self.engine, self.sharding if parts else None, parts or [value], dtype)
