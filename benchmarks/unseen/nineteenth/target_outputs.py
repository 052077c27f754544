"""Faults of the target's residual stream, of its head and of the taps taken from its layers."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("target stream, head and taps", 19)
TILE, CHUNK = 32, 96


def streaming(pipeline, change):
    """`change(moment, x, branches, out)` stands for the stream that leaves a layer which x entered."""

    def layer(at, clean, held, x, step, tap):
        branches = {}

        def watched(part, value):
            branches[part] = tap(part, change(at, x, branches, value) if part == "out" else value)
            return branches[part]

        return clean(held, x, step, watched)

    replaced(pipeline, pipeline.target, "layer", layer)


@fault(
    "attention-lost-from-stream",
    "layer 2 adds the experts to the stream that entered it: attention's output reaches its experts alone",
    "target.layers.2.out",
    "prefill",
    "residual stream that leaves layer 2",
)
def _(pipeline: Pipeline) -> None:
    streaming(pipeline, lambda at, x, branches, out: x + branches["ffn_out"] if at.layer == 2 else out)


@fault(
    "tail-rows-without-experts",
    "in a prefill the experts' output is added to the stream in full tiles of 32 rows, the rest is left out",
    "target.layers.0.out",
    "prefill",
    "experts' output in the residual stream of every layer",
    "rows of a prefill behind its last full tile of 32",
)
def _(pipeline: Pipeline) -> None:
    trash = pipeline.target.trash

    def change(at, x, branches, out):
        if at.kind != "prefill":
            return out
        full = int((at.positions < trash).sum()) // TILE * TILE
        left = at.host(x + branches["attn_out"])
        return at.changed(out, lambda value: np.concatenate([value[:, :full], left[:, full:]], axis=1))

    streaming(pipeline, change)


@fault(
    "head-tail-of-last-tile",
    "the head's last tile of 128 tokens leaves out the tail of 32 inputs behind the first 64",
    "target.logits",
    "prefill",
    "head weight of tokens 1152 to 1279, inputs 64 to 95",
)
def _(pipeline: Pipeline) -> None:
    def cut(weight):
        weight = weight.copy()
        weight[64:, 1152:] = 0
        return weight

    edit(pipeline.target, "head", cut)


@fault(
    "logits-one-row-late",
    "behind a round that accepted no draft each row's logits are those of the row behind it",
    "verify.logits",
    "verify",
    "rows that the head is applied to",
    "verify passes behind a round that accepted no draft",
    "pass = verify and accepted = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, normed, weight):
        late = at.kind == "verify" and at.accepted == 0
        rows = at.changed(normed, lambda value: np.concatenate([value[:, 1:], value[:, -1:]], axis=1))
        return clean(rows if late else normed, weight)

    alter(pipeline, "target:linear", change)


@fault(
    "taps-stacked-not-joined",
    "taps are stacked in front of the rows, and the stack is reshaped to rows without a transpose",
    "drafter.taps",
    "prefill",
    "all three taps of every row",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        def stacked(value):
            apart = value.reshape(value.shape[1], len(taps), -1).transpose(1, 0, 2)
            return apart.reshape(value.shape)

        return at.changed(clean(streams, taps), stacked)

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "first-tap-of-first-chunk",
    "a prefill runs in chunks of 96 rows, and the first tap of later chunks is that of the first",
    "drafter.taps",
    "prefill",
    "first of three taps",
    "rows of a prefill from 96 on",
    "pass = prefill and row >= 96",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        def stale(value):
            rows, width = np.arange(value.shape[1]) % CHUNK, value.shape[2] // len(taps)
            value[:, :, :width] = value[:, rows, :width]
            return value

        made = clean(streams, taps)
        return at.changed(made, stale) if at.kind == "prefill" else made

    replaced(pipeline, pipeline.target, "join", change)
