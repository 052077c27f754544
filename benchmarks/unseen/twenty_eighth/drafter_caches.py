"""What is written to the caches, and what a commit leaves there."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import Moment, replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches and rollback", 28)


def cleared(pipeline: Pipeline, one: Any, row: int) -> None:
    """Put zeros into this row of a cache."""
    one[:, row : row + 1] = pipeline.engine.array(np.zeros((1, 1, 1, 1), np.float32), one.dtype)


@fault(
    "last-values-in-fp8",
    "The last layer of the drafter takes the cache format of an fp8 deployment: its values go through e4m3, unscaled.",
    "kv.drafter.3.v",
    "prefill",
    "values of drafter layer 3 are rounded to float8 e4m3 when they are written",
)
def _(pipeline: Pipeline) -> None:
    def write(at: Moment, part: str, rows: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if part == "v" and at.layer == 3:
            rows = rows.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        return rows, slots

    writing(pipeline, "drafter", write)


@fault(
    "far-keys-heads-rolled",
    "Blocks of the drafter's cache behind the first 96 rows are laid out by another allocator, kv heads one place on.",
    "drafter.layers.0.attn_out",
    "prefill",
    "keys in slots from 96 on are written with the kv heads rolled by one",
    "keys at positions from 96 on, and the queries that see them",
    "position >= 96",
)
def _(pipeline: Pipeline) -> None:
    def write(at: Moment, part: str, rows: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if part == "k":
            rows = np.where(slots[:, :, None, None] >= 96, np.roll(rows, 1, axis=2), rows)
        return rows, slots

    writing(pipeline, "drafter", write)


@fault(
    "block-of-first-prompt",
    "The block hash of layer 2's values leaves the tokens out: later prompts take rows 32 to 47 from the first one.",
    "drafter.layers.2.attn_out",
    "prefill",
    "values of drafter layer 2 in slots 32 to 47 are the first prompt's",
    "prefills of prompts behind the first one, queries that see rows 32 to 47",
    "pass = prefill and prompt > 1 and position >= 32",
)
def _(pipeline: Pipeline) -> None:
    held: dict[str, np.ndarray] = {}

    def write(at: Moment, part: str, rows: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if part == "v" and at.layer == 2 and at.kind == "prefill":
            block = rows[0, 32:48].copy()
            rows[0, 32 : 32 + len(block)] = held.setdefault("block", block)[: len(block)]
        return rows, slots

    writing(pipeline, "drafter", write)


@fault(
    "drafter-rollback-clears-last-key",
    "The drafter's rollback compares with the last row, not with the length: the last true row's keys are cleared.",
    "kv.drafter.0.k",
    "commit",
    "keys of the last row that stays in the drafter's caches are zero",
)
def _(pipeline: Pipeline) -> None:
    def rollback(at: Moment, clean: Any, length: int) -> None:
        clean(length)
        for keys, _ in pipeline.drafter.caches:
            cleared(pipeline, keys, length - 1)

    replaced(pipeline, pipeline.drafter, "rollback", rollback)


@fault(
    "full-run-loses-last-value",
    "The target's rollback keeps K rows of a round at the most: where all drafts agree the last row loses its values.",
    "kv.target.0.v",
    "commit",
    "values of the last accepted draft's row are zero in the target's caches",
    "rounds that accept all K drafts",
)
def _(pipeline: Pipeline) -> None:
    def rollback(at: Moment, clean: Any, length: int) -> None:
        full = length - pipeline.target.length > pipeline.k
        clean(length)
        for _, values in pipeline.target.caches if full else ():
            cleared(pipeline, values, length - 1)

    replaced(pipeline, pipeline.target, "rollback", rollback)
