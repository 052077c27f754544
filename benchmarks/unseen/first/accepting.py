"""Faults of the host loop: what is accepted, what comes out."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("loop")
LENGTH, EMITTED = "accept.length", "accept.emitted"


@fault(
    "last-draft-not-compared",
    "the last draft is accepted wherever all before it are",
    LENGTH,
    "commit",
    "comparison of the last draft",
    "rounds that accept the first 3 drafts and reject the last",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        drafts = drafts.copy()
        drafts[-1] = verified[len(drafts) - 1]
        return clean(drafts, verified)

    replaced(pipeline, pipeline, "accepted", change)


@fault(
    "bonus-of-row-before",
    "where all drafts are accepted the bonus token is that of the row before",
    EMITTED,
    "commit",
    "bonus token",
    "rounds that accept all 4 drafts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified, record):
        if np.array_equal(drafts, verified[:-1]):
            verified = np.concatenate([verified[:-1], verified[-2:-1]])
        return clean(drafts, verified, record)

    replaced(pipeline, pipeline, "_accept", change)


@fault(
    "cap-of-three-behind-full-accept",
    "behind a round that accepted every draft three tokens come out at most",
    LENGTH,
    "commit",
    "accepted length",
    "rounds behind one that accepted all 4 drafts, which accept 3 drafts or more",
    "accepted = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        return min(clean(*given), 3 if at.accepted == 4 else 99)

    replaced(pipeline, pipeline, "accepted", change)


@fault(
    "every-third-round-accepts-nothing",
    "every third round emits the target's own token alone",
    LENGTH,
    "commit",
    "accepted length",
    "rounds whose number is a multiple of 3",
    "round % 3 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        return clean(*given) if at.round % 3 else 1

    replaced(pipeline, pipeline, "accepted", change)


@fault(
    "budget-short-by-one",
    "a round that reaches the budget emits one token less",
    LENGTH,
    "commit",
    "budget of a round",
    "rounds that reach the budget with two tokens or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        length = clean(*given)
        return max(length - 1, 1) if length == pipeline.left else length

    replaced(pipeline, pipeline, "accepted", change)


@fault(
    "emitted-pair-exchanged",
    "the first two tokens of a round that accepts two drafts or more come out exchanged",
    EMITTED,
    "commit",
    "order of emitted tokens",
    "rounds that accept 2 drafts or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified, record):
        if pipeline.accepted(drafts, verified) < 3:
            return clean(drafts, verified, record)
        given = record.exact

        def exact(group, part, value):
            value = value[[1, 0, *range(2, len(value))]] if part == "emitted" else value
            return given(group, part, value)

        record.exact = exact
        return clean(drafts, verified, record)

    replaced(pipeline, pipeline, "_accept", change)
