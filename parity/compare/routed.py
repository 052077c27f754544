"""Which experts the golden's rows run through, and which of them counts most."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from parity.compare.rows import StageRows, stage_rows
from parity.golden.views import DumpView


@dataclass(frozen=True)
class Routed:
    """Of the rows of a layer behind its router.

    Attributes:
        experts: bool [R] by expert that the golden chose.
        best: the expert with the largest score, int64 [R]; -1 where scores are not known.
        least: the smallest routing weight of a row, float64 [R]; -1 where that is not known.
    """

    experts: dict[int, np.ndarray] = field(default_factory=dict)
    best: np.ndarray | None = None
    least: np.ndarray | None = None

    @classmethod
    def of(cls, chosen: np.ndarray | None, scores: np.ndarray | None) -> Routed:
        """Of the experts chosen [R, X], and the router's scores [R, E] where they are known."""
        if chosen is None or chosen.ndim != 2:
            return cls()
        experts = {int(expert): (chosen == expert).any(axis=1) for expert in np.unique(chosen)}
        if scores is None or scores.ndim != 2 or len(scores) != len(chosen) or chosen.min() < 0:
            return cls(experts)
        if chosen.max() >= scores.shape[1]:
            return cls(experts)
        taken = np.take_along_axis(scores.astype(np.float64), chosen.astype(np.int64), axis=1)
        weights = np.exp(taken - taken.max(axis=1, keepdims=True))
        best = np.take_along_axis(chosen, taken.argmax(axis=1)[:, None], axis=1)[:, 0]
        return cls(experts, best.astype(np.int64), weights.min(axis=1) / weights.sum(axis=1))


PARTS = ("experts", "ffn_out", "out")
"""The parts of a layer behind its router."""


def routed(golden: DumpView, rows: StageRows) -> Routed:
    """Of a stage's rows, all of its layer; nothing where the stage lies before a router, or the golden lacks it."""
    if rows.named.stage.part not in PARTS or rows.named.stage.side != "target":
        return Routed()
    return Routed.of(*(_held(golden, rows, part) for part in ("experts", "router_logits")))


def _held(golden: DumpView, rows: StageRows, part: str) -> np.ndarray | None:
    name = f"target.layers.{rows.named.layer}.{part}"
    if name not in golden.manifest.stages:
        return None
    held = stage_rows(golden, golden, golden.declared[name], device="float32", mode="chained")
    return None if held is None or not np.array_equal(held.position, rows.position) else held.golden
