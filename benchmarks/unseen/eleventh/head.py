"""Eleventh set: faults of both heads."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("head", 11)


# From vLLM's two lists of rows of logits, those of drafts and that of the bonus token: put together in another order.
@fault(
    "bonus-logits-in-front",
    "rows of a verify pass' logits are put together from the bonus row and the drafts' rows, the bonus row first",
    "verify.logits",
    "verify",
    "order of the target's logits in a verify pass: row 4, then rows 0 to 3",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        made = clean(x, weight)
        return at.changed(made, lambda rows: np.roll(rows, 1, axis=1)) if at.kind == "verify" else made

    alter(pipeline, "target:linear", change)


# From the equations: a buffer between the head and the choice.
@fault(
    "logits-in-half",
    "the target's logits are handed over in a buffer of half precision",
    "target.logits",
    "prefill",
    "the target's logits: ten bits behind the point",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        return at.changed(clean(x, weight), lambda rows: rows.astype(np.float16).astype(np.float32))

    alter(pipeline, "target:linear", change)


# From the equations: t2d says which of the target's ids the draft vocabulary has, by the target's ids.
@fault(
    "mask-of-the-other-vocabulary",
    "draft logits are masked by t2d as if it were a mask over draft ids",
    "drafter.logits",
    "draft",
    "draft logits of ids which, as ids of the target, are not in the draft vocabulary: -10000",
)
def _(pipeline: Pipeline) -> None:
    offsets = moment(pipeline).host(pipeline.drafter.outer["d2t"]).astype(int)
    absent = np.setdiff1d(np.arange(len(offsets)), np.arange(len(offsets)) + offsets)

    def change(at, clean, x, weight):
        def hide(rows):
            rows[..., absent] = -10000
            return rows

        return at.changed(clean(x, weight), hide)

    alter(pipeline, "drafter:linear", change)
