"""Faults of the host loop: what is accepted, what comes out."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("loop", 16)
LENGTH = "accept.length"


@fault(
    "no-bonus-behind-full-accept",
    "a round that accepts every draft emits the drafts alone, without the bonus token",
    LENGTH,
    "commit",
    "bonus token",
    "rounds that accept all 4 drafts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        length = clean(drafts, verified)
        return length - (length == len(drafts) + 1)

    replaced(pipeline, pipeline, "accepted", change)


@fault(
    "matches-behind-a-mismatch-counted",
    "the accepted length is the number of all drafts that agree, behind the first that does not too",
    LENGTH,
    "commit",
    "accepted length, matches behind the first mismatch",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        return min(int(np.sum(drafts == verified[:-1])) + 1, pipeline.left)

    replaced(pipeline, pipeline, "accepted", change)


@fault(
    "budget-not-looked-at",
    "a round emits all that it accepted, more than the budget leaves too",
    LENGTH,
    "commit",
    "budget of a round",
    "rounds that accept more than the budget leaves",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        left, pipeline._left = pipeline._left, 1 << 20
        try:
            return clean(*given)
        finally:
            pipeline._left = left

    replaced(pipeline, pipeline, "accepted", change)
