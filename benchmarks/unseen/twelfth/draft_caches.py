"""Twelfth set: faults of the drafter's caches."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft caches", 12)


# After https://github.com/vllm-project/vllm/pull/56734: idle steps that write by a table of pages which is not theirs.
@fault(
    "idle-steps-write-the-first-page",
    "behind each round the drafter idles for three steps over zeros, whose keys and values go to the text's first page",
    "kv.drafter.0.k",
    "commit",
    "keys and values of rows 1 to 3 in every drafter layer: zero",
    "rows 1 to 3, from the commit of round 1 on",
)
def _(pipeline: Pipeline) -> None:
    model = pipeline.drafter

    def change(at, clean, length):
        clean(length)
        if at.kind != "commit":
            return

        def idle(rows):
            rows[:, 1:4] = 0
            return rows

        model.caches = [tuple(at.changed(one, idle) for one in pair) for pair in model.caches]

    replaced(pipeline, model, "rollback", change)


# Of the class of https://github.com/vllm-project/vllm/pull/5765: the row of a bonus token that the drafter did not see.
@fault(
    "masked-row-kept-behind-a-full-round",
    "where all drafts are accepted the drafter keeps the row behind its committed ones, which a placeholder made",
    "kv.drafter.0.k",
    "commit",
    "rows that the drafter's caches keep: one more, the first masked row",
    "commits of rounds that accept all 4 drafts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, before, drafts, emitted):
        return clean(before, drafts, emitted) + (len(emitted) > pipeline.k)

    replaced(pipeline, pipeline.drafter, "kept", change)
