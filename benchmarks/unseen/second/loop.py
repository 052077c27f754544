"""Second set: faults of the host loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("loop", 2)


@fault(
    "last-rounds-turn-one-on",
    "with two tokens or fewer left verify rows are rotated by the next position",
    "target.layers.0.q",
    "verify",
    "rotation of q and k of the target",
    "verify passes with two tokens or fewer left",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        step = clean(rows)
        if at.kind != "verify" or pipeline.left > 2:
            return step
        cos, sin = (at.host(table)[rows.positions + 1] for table in pipeline.target.tables)
        return replace(step, cos=at.array(cos, step.cos), sin=at.array(sin, step.sin))

    replaced(pipeline, pipeline.target, "step", change)


@fault(
    "rejected-draft-comes-out",
    "a round that accepts 3 drafts emits the rejected fourth, not the target's own token",
    "accept.emitted",
    "commit",
    "last emitted token",
    "rounds that accept 3 drafts and reject the last",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified, record):
        if pipeline.accepted(drafts, verified) != 4 or drafts[3] == verified[3]:
            return clean(drafts, verified, record)
        given = record.exact

        def exact(group, part, value):
            value = np.concatenate([value[:-1], drafts[3:4]]) if part == "emitted" else value
            return given(group, part, value)

        record.exact = exact
        return clean(drafts, verified, record)

    replaced(pipeline, pipeline, "_accept", change)


@fault(
    "bonus-not-fed",
    "behind a round that accepted every draft the verify pass begins with the last draft, not with the bonus token",
    "target.embed",
    "verify",
    "id of the first verify row",
    "row 0 of verify passes behind a round that accepted all 4 drafts",
    "pass = verify and accepted = 4 and row = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, width, group, record):
        if at.kind == "verify" and at.accepted == 4:
            ids = np.concatenate([pipeline._text[-2:-1], ids[1:]])
        return clean(ids, width, group, record)

    replaced(pipeline, pipeline, "_target_pass", change)
