"""Faults of the target's head, and of the taps taken from its layers."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment, replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("head and taps", 20)
LAST = 1024
"""Where the last of five tiles of the vocabulary begins."""
WIDTH = 96
"""Of one tap."""


@fault(
    "head-in-eight-bits",
    "the head is kept in int8 with one scale for all of it",
    "target.logits",
    "prefill",
    "weight of the head",
)
def _(pipeline: Pipeline) -> None:
    def narrow(value):
        scale = np.abs(value).max() / 127
        return np.round(value / scale) * scale

    edit(pipeline.target, "head", narrow)


@fault(
    "last-tile-of-verify-before",
    "every second verify pass hands over the logits' last tile before it is written: the pass before left it",
    "verify.logits",
    "verify",
    "logits of ids from 1024 on: those of the same row of the round before",
    "verify passes of even rounds",
    "pass = verify and round % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    kept: dict[str, np.ndarray] = {}

    def change(at, clean, x, weight):
        made = clean(x, weight)
        if at.kind != "verify":
            return made
        value, before = at.host(made), kept.get("logits")
        kept["logits"] = value.copy()
        if at.round % 2 == 0 and before is not None:
            rows = min(before.shape[1], value.shape[1])
            value[:, :rows, LAST:] = before[:, :rows, LAST:]
        return at.array(value, made)

    alter(pipeline, "target:linear", change)


@fault(
    "middle-tap-before-experts",
    "the middle tap is taken in its layer between attention and experts: their output is not in it",
    "drafter.taps",
    "prefill",
    "second of three taps",
)
def _(pipeline: Pipeline) -> None:
    layer = pipeline.drafter.config.taps[1] - 1
    weight, kept = pipeline.target.layers[layer]["post_norm"], {}

    def norm(at, clean, x, given, eps):
        if given is weight:
            kept["stream"] = x
        return clean(x, given, eps)

    def join(at, clean, streams, taps):
        def early(value):
            value[..., WIDTH : 2 * WIDTH] = at.host(kept["stream"])
            return value

        return at.changed(clean(streams, taps), early)

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", norm)
    replaced(pipeline, pipeline.target, "join", join)


@fault(
    "tap-of-one-accepted-repeats",
    "behind a round that accepted one draft the second committed row gets the first one's taps again",
    "drafter.taps",
    "draft",
    "taps of the second committed row",
    "second committed row of drafts behind a round that accepted one draft",
    "pass = draft and accepted = 1 and row = 1",
)
def _(pipeline: Pipeline) -> None:
    at = moment(pipeline)

    def change(_, clean, taps, first, *rest):
        def again(value):
            value[:, first + 1] = value[:, first]
            return value

        return clean(at.changed(taps, again) if at.kind == "draft" and at.accepted == 1 else taps, first, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)
