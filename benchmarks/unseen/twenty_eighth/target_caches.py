"""The target's caches."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.unseen.moments import replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches of the target", 28)


@fault(
    "last-verify-value-not-written",
    "a verify pass takes its last row for padding when it writes values: they go to the trash slot",
    "target.layers.0.attn_out",
    "verify",
    "the value cache at the slot of the last row",
    "the last row of a verify pass",
    "pass = verify and row = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, part: str, rows: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if at.kind == "verify" and part == "v":
            slots = slots.copy()
            slots[:, -1] = pipeline.target.trash
        return rows, slots

    writing(pipeline, "target", change)


@fault(
    "block-of-the-first-prompt-reused",
    "a later prompt's fourth block of 16 rows is taken for a known prefix: full layers keep those of the first prompt",
    "target.layers.1.attn_out",
    "prefill",
    "key and value rows of positions 48 to 63 in the full layers",
    "prompts after the first, rows of full layers from position 48 on",
    "prompt > 1 and layer % 2 = 1 and position >= 48",
)
def _(pipeline: Pipeline) -> None:
    kept: dict[tuple[int, str], np.ndarray] = {}

    def change(at: Any, part: str, rows: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if at.kind == "prefill" and pipeline.target.windows[at.layer] is None:
            known = kept.setdefault((at.layer, part), rows[:, 48:64].copy())
            rows = rows.copy()
            rows[:, 48:64] = known
        return rows, slots

    writing(pipeline, "target", change)


@fault(
    "rollback-clears-the-last-accepted",
    "where a round accepts every draft, the rollback of the target clears the last accepted row as well",
    "kv.target.0.k",
    "commit",
    "the last row that a commit keeps, zero",
    "the round accepted all of its drafts",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, length: int) -> None:
        target = pipeline.target
        whole = at.kind == "commit" and length - target.length == pipeline.k + 1
        clean(length - 1 if whole else length)
        target.length = length

    replaced(pipeline, pipeline.target, "rollback", change)
