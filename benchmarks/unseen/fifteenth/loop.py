"""Faults of the host loop: how many tokens of a round come out."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("loop", 15)
LENGTH = "accept.length"


@fault(
    "matches-counted-past-the-mismatch",
    "accepted drafts are all that agree, those behind the first mismatch included",
    LENGTH,
    "commit",
    "accepted length: matches behind the first mismatch",
    "rounds in which a draft agrees behind one that does not",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        agreed = int(np.sum(drafts == verified[:-1])) + 1
        return max(clean(drafts, verified), min(agreed, pipeline.left))

    replaced(pipeline, pipeline, "accepted", change)


@fault(
    "no-bonus-behind-the-last-draft",
    "a round that accepts every draft drops the target's token behind them",
    LENGTH,
    "commit",
    "accepted length: bonus token",
    "rounds that accept all 4 drafts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        length = clean(drafts, verified)
        return length - (0 < len(drafts) < length)

    replaced(pipeline, pipeline, "accepted", change)
