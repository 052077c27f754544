"""Faults of what a round leaves in the caches."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("commit and rollback", 21)
PAGE = 16


@fault(
    "last-kept-values-of-rejected-row",
    "where a draft is rejected the last kept row has the first rejected row's values in layer 6",
    "kv.target.6.v",
    "commit",
    "values of the last kept row of the target's layer 6",
    "rounds that leave rows of rejected drafts behind, their last kept row",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target

    def change(at, clean, length):
        if at.kind == "commit" and length <= at.positions.max():
            values = target.caches[6][1]
            values[:, length - 1 : length] = values[:, length : length + 1]
        return clean(length)

    replaced(pipeline, target, "rollback", change)


@fault(
    "rollback-frees-full-page",
    "a rollback to the end of a page of 16 frees that page as well: its rows are cleared in the drafter's cache",
    "kv.drafter.0.k",
    "commit",
    "the last 16 rows of the drafter's caches",
    "rounds behind which the drafter keeps a multiple of 16 rows",
)
def _(pipeline: Pipeline) -> None:
    drafter = pipeline.drafter

    def change(at, clean, length):
        clean(length)
        if at.kind == "commit" and length % PAGE == 0:
            for one in (one for pair in drafter.caches for one in pair):
                one[:, length - PAGE : length] = 0 * one[:, length - PAGE : length]

    replaced(pipeline, drafter, "rollback", change)
