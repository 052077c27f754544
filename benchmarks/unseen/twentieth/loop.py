"""Faults of the verify pass, of acceptance and of what a round leaves to the next."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import altered
from parity.device.pipeline import Pipeline

fault = Part("verify and accept", 20)


@fault(
    "verify-behind-rejected-draft",
    "where no draft is accepted the next verify pass begins with the rejected draft, not with its correction",
    "target.embed",
    "verify",
    "id of the first row of a verify pass",
    "the first row of verify passes behind a round that accepted no draft",
    "pass = verify and accepted = 0 and row = 0",
)
def _(pipeline: Pipeline) -> None:
    held: dict[str, int] = {}

    def commit(at, clean, drafts, *rest):
        held["rejected"] = int(drafts[0]) if len(drafts) else 0
        return clean(drafts, *rest)

    def rows(at, clean, ids, *rest):
        if at.kind == "verify" and at.accepted == 0:
            ids = np.concatenate([[held["rejected"]], ids[1:]])
        return clean(ids, *rest)

    replaced(pipeline, pipeline, "commit", commit)
    alter(pipeline, "pipeline:pad_rows", rows)


@fault(
    "verify-drafts-as-siblings",
    "the mask of a verify pass is that of a flat tree: a draft sees the text and itself, not the drafts in front of it",
    "target.layers.0.attn_out",
    "verify",
    "mask of the verify rows in every layer",
    "rows of verify passes from the third on",
    "pass = verify and row >= 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, positions, *rest):
        step = clean(positions, *rest)
        if at.kind != "verify":
            return step
        sits = at.host(positions)[0]

        def alone(seen):
            shown = at.host(seen).copy()
            for row in range(2, len(sits)):
                shown[0, row, sits[1] : sits[row]] = False
            return at.array(shown, seen)

        return replace(step, seen={window: alone(seen) for window, seen in step.seen.items()})

    replaced(pipeline, pipeline.target, "make_step", change)


@fault(
    "verify-positions-of-four-rows",
    "a verify pass has room for the positions of four rows: those behind sit at the fourth one's",
    "target.layers.0.q",
    "verify",
    "positions of the rows of a verify pass, in rotation and mask",
    "rows of verify passes from the fifth on",
    "pass = verify and row >= 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, positions, *rest):
        if at.kind == "verify":
            positions = np.minimum(positions, positions[0] + 3)
        return clean(ids, positions, *rest)

    alter(pipeline, "pipeline:pad_rows", change)


@fault(
    "bonus-of-last-draft-row",
    "where every draft is accepted the bonus token is that of the row before: the last draft comes out twice",
    "accept.emitted",
    "commit",
    "the bonus token",
    "rounds that accept every draft",
)
def _(pipeline: Pipeline) -> None:
    def change(value, drafts, verified):
        if len(value) == len(drafts) + 1 and len(drafts):
            value[-1] = verified[len(drafts) - 1]
        return value

    altered(pipeline, "commit", "accept.emitted", change)


@fault(
    "accepts-three-at-most",
    "acceptance compares three drafts, as many as the port was brought up with: those behind never count",
    "accept.length",
    "commit",
    "how many drafts are compared",
    "rounds in which more than three drafts agree",
)
def _(pipeline: Pipeline) -> None:
    replaced(pipeline, pipeline, "accepted", lambda at, clean, *given: min(clean(*given), 4))
