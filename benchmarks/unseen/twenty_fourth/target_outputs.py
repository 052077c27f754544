"""Faults of what leaves the target: logits and taps."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("head and taps", 24)
TAPS, BUFFER = "drafter.taps", 128


@fault(
    "last-vocab-tile-misses-inner-remainder",
    "logits of ids from 1024 on leave out the hidden inputs behind the first 64",
    "target.logits",
    "prefill",
    "head columns from 1024 on, inputs 64 to 95",
)
def _(pipeline: Pipeline) -> None:
    def cut(value):
        value[64:, 1024:] = 0
        return value

    alter(pipeline, "target:linear", lambda at, clean, x, weight: clean(x, at.changed(weight, cut)))


@fault(
    "verify-head-second-tile-late-start",
    "verify rows from 3 on sum their logits from hidden input 32 on",
    "verify.logits",
    "verify",
    "contraction of the head, inputs 0 to 31",
    "verify rows from 3 on",
    "pass = verify and row >= 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        def cut(value):
            value[:, 3:, :32] = 0
            return value

        return clean(at.changed(x, cut) if at.kind == "verify" else x, weight)

    alter(pipeline, "target:linear", change)


@fault(
    "taps-hold-residual-without-mlp-branch",
    "taps are the residual that the experts' output is not yet added to",
    TAPS,
    "prefill",
    "all three taps: the experts' output of the layer in front is missing",
)
def _(pipeline: Pipeline) -> None:
    branches = {}

    def remember(at, clean, x, weights, config, tap):
        made = clean(x, weights, config, tap)
        branches[at.layer + 1] = made
        return made

    def change(at, clean, streams, taps):
        bare = [stream - branches[n] if n in taps and n in branches else stream for n, stream in enumerate(streams)]
        return clean(bare, taps)

    alter(pipeline, "kernels.target_layer:moe", remember)
    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "tap-ring-overwritten-past-capacity",
    "taps go through a ring of 128 rows that a longer prefill overwrites before it is read",
    TAPS,
    "prefill",
    "taps of early rows of a long prompt: those of the row 128 further on",
    "rows of a prefill that has a row 128 behind them",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        made = clean(streams, taps)
        count = int((at.positions != pipeline.target.trash).sum())
        over = count - BUFFER
        if at.kind != "prefill" or over <= 0:
            return made
        index = np.arange(made.shape[1])
        index[:over] += BUFFER
        return made[:, index]

    replaced(pipeline, pipeline.target, "join", change)
