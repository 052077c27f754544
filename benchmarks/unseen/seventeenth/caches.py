"""Faults of what a commit leaves in the target's caches."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 17)
PAGE = 4


@fault(
    "value-pages-kept-whole",
    "a commit keeps whole pages of 4 rows of the sliding layers' values, rows of a page begun are cleared",
    "kv.target.0.v",
    "commit",
    "value caches of sliding-window layers, rows behind the last whole page",
    "commits that leave a length that is no multiple of 4, even layers",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, length):
        clean(length)
        if at.kind == "commit":
            for _, values in pipeline.target.caches[::2]:
                values[:, length // PAGE * PAGE : length] = 0.0

    replaced(pipeline, pipeline.target, "rollback", change)


@fault(
    "one-kept-row-is-the-last",
    "a commit that keeps one row of a verify pass moves the pass' last row there",
    "kv.target.0.k",
    "commit",
    "kept row of the target's caches in every layer",
    "commits that keep one row",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, length):
        before = pipeline.target.length
        if at.kind == "commit" and length == before + 1:
            last = before + pipeline.k
            for one in (one for pair in pipeline.target.caches for one in pair):
                one[:, before:length] = one[:, last : last + 1]
        clean(length)

    replaced(pipeline, pipeline.target, "rollback", change)
