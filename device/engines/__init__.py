"""Machines that run the kernels.

Each module offers `NAME`, `array`, `zeros` and `host`, or `engine()` that gives an object with these. What compiles
may offer `versions` (package to version), `notes()` (what else a reader of its runs must know),
`interpret()` (from now on, no kernel is compiled), `wait(arrays)` where calls return before these are written, and
`own_programs` where no other device runs its programs. An engine that knows its own way to several ranks offers
`spread(sharding)`; with ranks there are `sharding`, `shard` and `hosts` beside the others
(`parity.device.engines.ranks`). What serves one lane of a batch offers `widest` (`parity.device.engines.stacked`).
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from parity.device.sharding import Sharding


class Engine(Protocol):
    """What every engine offers. An array is the engine's own: it takes the place of a NumPy array in the kernels."""

    NAME: str

    def array(self, value: Any, dtype: Any = None) -> Any:
        """Move a host array to the engine; floating values are rounded to `dtype` where one is given."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of zeros."""
        ...

    def host(self, value: Any) -> np.ndarray:
        """A copy on the host: float32, ml_dtypes bfloat16, int64 or bool."""
        ...


@runtime_checkable
class RankEngine(Engine, Protocol):
    """An engine with tensor-parallel ranks."""

    sharding: Sharding | None

    def shard(self, parts: Sequence[Any], dtype: Any = None) -> Any:
        """One host array a rank to an array."""
        ...

    def hosts(self, value: Any) -> list[np.ndarray]:
        """An array to one host array a rank."""
        ...


AnyEngine: TypeAlias = Engine | ModuleType | SimpleNamespace
"""An engine in the forms in which it is handed round: an object, a module or a namespace of functions."""


def widest(engine: AnyEngine, number: int) -> int:
    """A static size of a pass, as wide as the widest of the sequences that run it together."""
    return int(getattr(engine, "widest", int)(number))


def to_hosts(engine: AnyEngine, sharding: Sharding | None, value: Any) -> list[np.ndarray]:
    """An array as one host array a rank; one where there are no ranks."""
    return [engine.host(value)] if sharding is None else with_ranks(engine).hosts(value)


def from_hosts(engine: AnyEngine, sharding: Sharding | None, parts: Sequence[np.ndarray], dtype: Any) -> Any:
    """The array of which `to_hosts` gave these parts."""
    return engine.array(parts[0], dtype) if sharding is None else with_ranks(engine).shard(parts, dtype)


def with_ranks(engine: AnyEngine) -> RankEngine:
    """The same engine, which has ranks.

    Raises:
        TypeError: it has none.
    """
    if not isinstance(engine, RankEngine):
        raise TypeError(f"the engine {engine.NAME} has no ranks")
    return engine
