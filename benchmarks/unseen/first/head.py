"""Faults of the target's head and of its choice."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, scaled
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("embedding and head")


@fault(
    "head-tile-displaced",
    "logits 1024 to 1151 of the target are those of the id before",
    "target.logits",
    "prefill",
    "lm head, ids 1024 to 1151",
)
def _(pipeline: Pipeline) -> None:
    def displaced(value):
        value = value.copy()
        value[:, 1024:1152] = value[:, 1023:1151]
        return value

    edit(pipeline.target, "head", displaced)


@fault(
    "head-remainder-zero-in-verify",
    "logits behind the last whole tile of 192 ids are zero in verify passes",
    "verify.logits",
    "verify",
    "lm head, ids 1152 to 1279",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        made = clean(x, weight)
        return at.changed(made, scaled(slice(1152, None), 0.0)) if at.kind == "verify" else made

    alter(pipeline, "target:linear", change)


@fault(
    "argmax-keeps-first-half",
    "the greedy choice takes the upper half of the ids only where it is larger by one",
    "target.tokens",
    "prefill",
    "argmax over two halves of the ids",
    "rows whose best id is 640 or more and leads the lower half by less than one",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits):
        return clean(at.changed(logits, lambda value: np.where(np.arange(1280) < 640, value, value - 1)))

    alter(pipeline, "target:greedy", change)


@fault(
    "head-contraction-tail-for-late-rows",
    "the head skips hidden columns from 80 on for verify rows behind the second",
    "verify.logits",
    "verify",
    "lm head, hidden columns 80 to 95",
    "verify rows from 2 on",
    "pass = verify and row >= 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        def cut(value):
            value[:, 2:, 80:] = 0
            return value

        return clean(at.changed(x, cut) if at.kind == "verify" else x, weight)

    alter(pipeline, "target:linear", change)


@fault(
    "first-verify-row-of-round-before",
    "the first row of a verify pass shows the round before's first logits",
    "verify.logits",
    "verify",
    "logits of the first verify row",
    "first row of verify passes from round 2 on",
    "pass = verify and round >= 2 and row = 0",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, x, weight):
        made = clean(x, weight)
        if at.kind != "verify":
            return made
        before, held["row"] = held.get("row"), at.host(made)[:, :1]

        def stale(value):
            value[:, :1] = before
            return value

        return at.changed(made, stale) if at.round >= 2 else made

    alter(pipeline, "target:linear", change)


@fault(
    "head-narrow-accumulator",
    "the head adds three partial sums of 32 columns that were each rounded to 5 bits",
    "target.logits",
    "prefill",
    "lm head's contraction",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        rows, columns = at.host(x), at.host(weight)
        total = 0.0
        for first in range(0, 96, 32):
            mantissa, exponent = np.frexp(rows[..., first : first + 32] @ columns[first : first + 32])
            total = total + np.ldexp(np.round(mantissa * 64) / 64, exponent)
        return at.array(total.astype(np.float32), x)

    alter(pipeline, "target:linear", change)
