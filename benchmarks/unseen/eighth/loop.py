"""Eighth set: faults of acceptance and of the rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("the loop", 8)


# After https://github.com/NVIDIA/TensorRT-LLM/pull/3865: a rule for thinking alone, here left on for every token.
@fault(
    "relaxed-acceptance-left-on",
    "a draft is accepted where it is among the target's four best tokens",
    "accept.length",
    "commit",
    "acceptance of a draft: it need not be the target's best token",
    "rounds whose first draft that the target would not choose is among its four best",
)
def _(pipeline: Pipeline) -> None:
    seen = {}

    def watch(at, clean, *given):
        made = clean(*given)
        if at.kind == "verify":
            seen["best"] = np.argsort(-at.host(made)[0], axis=-1, kind="stable")[:, :4]
        return made

    def change(at, clean, drafts, verified):
        good = (seen["best"][: len(drafts)] == drafts[:, None]).any(axis=-1)
        return clean(np.where(good, verified[:-1], drafts), verified)

    alter(pipeline, "target:linear", watch)
    replaced(pipeline, pipeline, "accepted", change)


# From the equations: a pointer into the tokens that the bonus token does not move.
@fault(
    "drafts-behind-a-second-bonus",
    "behind a round that accepts every draft the bonus token is written twice in front of the next drafts, and the "
    "last draft falls out",
    "target.embed",
    "verify",
    "ids of a verify pass: the bonus token in rows 0 and 1, each draft but the last a row late",
    "verify passes behind a round that accepted all 4 drafts, rows but the first",
    "pass = verify and accepted = 4 and row >= 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        if at.kind != "verify" or at.accepted != pipeline.k:
            return clean(rows)
        ids = rows.ids.copy()
        ids[0, 1 : rows.count] = rows.ids[0, : rows.count - 1]
        return clean(replace(rows, ids=ids))

    replaced(pipeline, pipeline.target, "embedded", change)


# From the equations: a counter that a new sequence does not reset.
@fault(
    "draft-positions-go-on",
    "the drafter's positions of a prompt go on where those of the prompt before ended",
    "drafter.positions",
    "prefill",
    "positions of all drafter rows: too large by the rows of the prompt before, slots as they should be",
    "the second prompt and those behind it",
    "prompt >= 2",
)
def _(pipeline: Pipeline) -> None:
    rows_of = {}

    def change(at, clean, ids, others):
        ids, positions, slots = clean(ids, others)
        if at.kind == "prefill":
            rows_of[at.prompt] = len(ids)
        return ids, positions + rows_of.get(at.prompt - 1, 0), slots

    replaced(pipeline, pipeline.drafter, "layout", change)
