"""Tensor parallelism: which rank holds what of every weight and of every stage.

Heads, the experts' and the drafter's intermediate, and the vocabulary are shared out in equal runs, rank 0 first.
Where there are more ranks than kv heads, neighbouring ranks hold the same one. Everything else, the embedding,
router and fc among it, every rank holds whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parity.device.config import TargetConfig
from parity.device.drafter_config import DrafterConfig, NGramConfig
from parity.errors import UsageError
from parity.stages import TABLE

COLUMNS = ("q", "q_bias", "sinks", "gate", "gate_bias", "up", "up_bias", "head")
KV = ("k", "k_bias", "v", "v_bias")
ROWS = ("o", "down")
ONCE = ("o_bias", "down_bias")
"""Biases of the row-parallel projections: on rank 0, or the sum over the ranks would hold them once a rank."""

REPLICATED = "replicated"
_STAGE_AXES = {one.template.replace("{l}", "*"): one.axes for one in TABLE}
_SHARED_AXES = ("N", "G", "V", "VD")


@dataclass(frozen=True)
class Sharding:
    """How many ranks there are, and the kv heads G of each model.

    Args:
        ranks: TP.
        kv_heads: `target` and `drafter` to G.
    """

    ranks: int
    kv_heads: dict[str, int]

    def copies(self, side: str) -> int:
        """How many neighbouring ranks hold the same kv heads."""
        return max(1, self.ranks // self.kv_heads[side])

    def local_kv_heads(self, side: str) -> int:
        """KV heads of one rank."""
        return self.kv_heads[side] * self.copies(side) // self.ranks

    def weight(self, side: str, name: str, value: np.ndarray) -> list[np.ndarray] | None:
        """Each rank's part of a weight in x@W form, or None where every rank holds all of it."""
        if name in ONCE:
            return [value, *[np.zeros_like(value)] * (self.ranks - 1)]
        if name in KV:
            return self._cut(value, -1, self.copies(side))
        if name in COLUMNS or name in ROWS:
            return self._cut(value, -1 if name in COLUMNS else -2, 1)
        return None

    def stage(self, stage: str) -> str:
        """How the ranks' tensors of a stage make one: see `parity.seam.RankTap`."""
        axis = next((axis for axis in _axes(stage) if axis in _SHARED_AXES), None)
        copies = self.copies("drafter" if "drafter" in stage.split(".") else "target") if axis == "G" else 1
        return REPLICATED if axis is None else axis if copies == 1 else f"{axis}/{copies}"

    def split(self, stage: str, whole: np.ndarray) -> list[np.ndarray]:
        """Each rank's part of a stage's tensor."""
        axis, copies = self._place(stage)
        return [whole] * self.ranks if axis is None else self._cut(whole, axis, copies)

    def merge(self, stage: str, shards: Sequence[np.ndarray]) -> np.ndarray:
        """The stage's tensor out of each rank's part.

        Raises:
            RuntimeError: ranks that should hold the same do not; which of them is right nobody knows.
        """
        axis, copies = self._place(stage)
        copies = self.ranks if axis is None else copies
        for rank, shard in enumerate(shards):
            if not np.array_equal(shard, shards[rank - rank % copies], equal_nan=shard.dtype.kind == "f"):
                raise RuntimeError(
                    f"{stage}: rank {rank} differs from rank {rank - rank % copies}, which should hold the same"
                )
        return shards[0] if axis is None else np.concatenate(shards[::copies], axis=axis)

    def _place(self, stage: str) -> tuple[int | None, int]:
        """The axis that is shared out, and how many neighbours hold the same of it."""
        axis, _, copies = self.stage(stage).partition("/")
        return (None, 1) if axis == REPLICATED else (_axes(stage).index(axis), int(copies or 1))

    def _cut(self, value: np.ndarray, axis: int, copies: int) -> list[np.ndarray]:
        parts = np.split(value, self.ranks // copies, axis=axis)
        return [part.copy() for part in parts for _ in range(copies)]


def shard(ranks: int, target: TargetConfig, drafter: DrafterConfig | NGramConfig) -> Sharding:
    """How this many ranks share out a pair of models.

    Raises:
        UsageError: an axis leaves a remainder.
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise UsageError(f"tp: {ranks!r} is no number of ranks, at least 1 is needed.")
    models: list[tuple[str, TargetConfig | DrafterConfig, int]] = [("target", target, target.vocab)]
    models += [("drafter", drafter, drafter.head)] if isinstance(drafter, DrafterConfig) else []
    for model, config, vocabulary in models:
        heads, kv_heads = config.attention.heads, config.attention.kv_heads
        _refuse(ranks, heads, model, "attention heads")
        if kv_heads % ranks and ranks % kv_heads:
            raise UsageError(
                f"tp: {ranks} ranks neither share out nor repeat the {model}'s {kv_heads} kv heads evenly."
            )
        _refuse(ranks, config.intermediate, model, "intermediate columns")
        _refuse(ranks, vocabulary, model, "vocabulary entries" if model == "target" else "draft vocabulary entries")
    return Sharding(ranks, {model: config.attention.kv_heads for model, config, _ in models})


def _refuse(ranks: int, size: int, model: str, what: str) -> None:
    if size % ranks:
        raise UsageError(f"tp: {ranks} ranks cannot share out the {model}'s {size} {what} evenly.")


def _axes(stage: str) -> tuple[str, ...]:
    layered = ".".join("*" if part.isdigit() else part for part in stage.split("."))
    return _STAGE_AXES[layered]
