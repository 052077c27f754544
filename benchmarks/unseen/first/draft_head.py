"""Faults of the drafter's final norm and head."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("draft heads")
NORM, LINEAR = "drafter:llama_norm", "drafter:linear"
LOGITS = "drafter.logits"


@fault(
    "draft-head-remainder-zero",
    "draft logits behind the last whole tile of 64 ids are zero",
    LOGITS,
    "draft",
    "draft head, ids 960 to 991",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "head", lambda value: np.where(np.arange(992) < 960, value, 0.0))


@fault(
    "third-draft-from-second-hidden",
    "the third draft's head reads the second draft's hidden",
    "drafter.pre_head_hidden",
    "draft",
    "input of the final norm, third draft",
    "third draft of every round",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        def stale(value):
            value[:, 2:3] = value[:, 1:2][:, : value[:, 2:3].shape[1]]
            return value

        return clean(at.changed(x, stale), weight, eps)

    alter(pipeline, NORM, change)


@fault(
    "first-draft-normed-twice",
    "the first draft's hidden goes through the final norm twice",
    "drafter.pre_head_hidden",
    "draft",
    "final norm, first draft",
    "first draft of every round",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        again = at.host(clean(made, weight, eps))

        def twice(value):
            value[:, 0] = again[:, 0]
            return value

        return at.changed(made, twice)

    alter(pipeline, NORM, change)


@fault(
    "later-drafts-cooled",
    "logits of all drafts but the first are 5 % too small",
    LOGITS,
    "draft",
    "scale of the draft logits",
    "all drafts of a round but the first",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        def cooled(value):
            value[:, 1:] *= 0.95
            return value

        return at.changed(clean(x, weight), cooled)

    alter(pipeline, LINEAR, change)


@fault("draft-head-in-eighths", "the draft head's weight is kept in fp8 (e4m3)", LOGITS, "draft", "draft head weight")
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "head", lambda value: value.astype(float8_e4m3fn).astype(np.float32))


@fault(
    "final-norm-tail-shifted",
    "the draft's final norm weight is shifted by one from column 64 on",
    "drafter.pre_head_hidden",
    "draft",
    "final norm weight, columns 64 to 95",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "norm", lambda value: np.concatenate([value[:64], value[63:-1]]))


@fault(
    "head-tile-late-in-round-1",
    "the draft head's first tile of 128 ids is still zero in round 1",
    LOGITS,
    "draft",
    "draft head, ids 0 to 127",
    "the draft of round 1",
    "pass = draft and round = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        def empty(value):
            value[..., :128] = 0
            return value

        made = clean(x, weight)
        return at.changed(made, empty) if at.round == 1 else made

    alter(pipeline, LINEAR, change)
