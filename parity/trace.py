"""Taps that parity hands to a device or a reference: one that records, one that forces as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.errors import UsageError
from parity.stages import TABLE, Named

Tensors = dict[tuple[int, str], NDArray[Any]]
"""(round, full stage name) to the stage's tensor, logical rows only."""


class Trace:
    """Records one prompt's stage tensors; the value passes through unchanged.

    Args:
        declared: the stages of this pair of models.
        keep: which of them to keep in memory; all by default.

    Attributes:
        tensors: whole tensors.
        shards: of a tensor-parallel device, how the ranks' tensors of a place merge, and each rank's.
    """

    def __init__(self, declared: Mapping[str, Named], keep: Callable[[str], bool] = lambda name: True):
        self.declared, self.keep = declared, keep
        self.round = 0
        self.tensors: Tensors = {}
        self.shards: dict[tuple[int, str], tuple[str, list[NDArray[Any]]]] = {}
        self.passed: dict[str, list[NDArray[Any]]] = {}

    def begin(self, round_: int) -> None:
        """Everything handed over from now on belongs to this round."""
        self.round = round_
        self.passed = {}

    def __call__(self, stage: str, value: NDArray[Any]) -> NDArray[Any]:
        """Record a copy, so that a later change in place is not mistaken for the stage's value.

        Raises:
            UsageError: the stage is not in the table, has another rank, or came twice in this round.
        """
        named = self.declared.get(stage)
        if named is None:
            raise UsageError(f"a tensor was handed over as {stage!r}, which is no declared stage")
        if value.ndim != len(named.stage.axes):
            axes = ",".join(named.stage.axes)
            raise UsageError(f"{stage} came with shape {value.shape}; its axes are [{axes}]")
        if (self.round, stage) in self.tensors:
            raise UsageError(f"{stage} came twice in round {self.round}")
        if self.keep(stage):
            self.tensors[self.round, stage] = np.array(value, order="C")
        return value

    def rows(self, stage: str, value: NDArray[Any], first: int, total: int) -> NDArray[Any]:
        """Record a stage once all its rows are there; see `parity.seam.RowTap`.

        Raises:
            UsageError: rows are missing, surplus or come twice.
        """
        passed = [*(self.passed.get(stage, ()) if first else ()), np.array(value)]
        end = sum(len(rows) for rows in passed)
        if end != first + len(value) or end > total:
            raise UsageError(f"{stage}: rows {first} to {end - 1} of {total} came out of turn in round {self.round}")
        self.passed[stage] = passed
        if end == total:
            Trace.__call__(self, stage, np.concatenate(self.passed.pop(stage)))
        return value

    def ranks(self, stage: str, shards: Sequence[NDArray[Any]], sharding: str) -> Sequence[NDArray[Any]]:
        """Record each rank's tensor and what they merge to; see `parity.seam.RankTap`."""
        from parity.golden.shards import merge_shards, split

        axes = self.declared[stage].stage.axes if stage in self.declared else ()
        whole = merge_shards(stage, shards, sharding, axes)
        taken = self(stage, whole)
        if self.keep(stage):
            self.shards[self.round, stage] = sharding, [np.array(shard, order="C") for shard in shards]
        return shards if taken is whole else split(stage, taken, len(shards), sharding, axes)


class ForcingTrace(Trace):
    """Records, then returns the golden's tensor instead, in the argument's dtype.

    Args:
        golden: the float32 golden of the same prompt, full cache contents.
        mode: chained or local, which decides what is replaced.
    """

    def __init__(
        self,
        declared: Mapping[str, Named],
        golden: Callable[[int, str], NDArray[Any] | None],
        mode: str,
        keep: Callable[[str], bool] = lambda name: True,
    ):
        super().__init__(declared, keep)
        self.golden, self.forced = golden, set(forced_templates(mode))

    def __call__(self, stage: str, value: NDArray[Any]) -> NDArray[Any]:
        super().__call__(stage, value)
        return self._forced(stage, value, 0, len(value))

    def rows(self, stage: str, value: NDArray[Any], first: int, total: int) -> NDArray[Any]:
        """Record as `Trace.rows`, then return the golden's rows of this pass."""
        super().rows(stage, value, first, total)
        return self._forced(stage, value, first, total)

    def _forced(self, stage: str, value: NDArray[Any], first: int, total: int) -> NDArray[Any]:
        if stage not in self.declared or self.declared[stage].stage.template not in self.forced:
            return value
        true = self.golden(self.round, stage)
        if true is None or true.shape != (total, *value.shape[1:]):
            return value  # a structural difference: the comparison reports it, the run continues
        return true[first : first + len(value)].astype(value.dtype)


def forced_templates(mode: str) -> tuple[str, ...]:
    """Templates of the stages that a comparison forces.

    Chained: the choices only (tokens, experts, accepted counts), so that numeric errors travel downstream
    but a rounding that tips a choice does not hide everything behind it. Local: every stage.
    """
    return tuple(stage.template for stage in TABLE if stage.forced or mode == "local")
