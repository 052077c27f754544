"""Faults of the taps as the drafter gets them, and of the drafter's fc."""

from __future__ import annotations

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("taps and fc", 21)
TAPS, FUSED = "drafter.taps", "drafter.fc_out"


@fault(
    "middle-tap-in-front-of-experts",
    "the middle tap is the stream behind its layer's attention, before the experts' output is added",
    TAPS,
    "prefill",
    "second of three taps",
)
def _(pipeline: Pipeline) -> None:
    halfway = {}

    def layer(at, clean, held, x, step, tap):
        def watch(part, value):
            value = tap(part, value)
            if part == "attn_out":
                halfway[held] = x + value
            return value

        return clean(held, x, step, watch)

    def join(at, clean, streams, taps):
        return clean([halfway[n - 1] if n == taps[1] else one for n, one in enumerate(streams)], taps)

    replaced(pipeline, pipeline.target, "layer", layer)
    replaced(pipeline, pipeline.target, "join", join)


@fault(
    "taps-repeat-at-tile-starts",
    "the first row of every later tile of 64 prompt rows gets the taps of the row in front of it",
    TAPS,
    "prefill",
    "taps of rows 64, 128 and 192",
    "first rows of prefill tiles of 64 but the first tile",
    "pass = prefill and position % 64 = 0 and position > 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, *rest):
        def repeated(value):
            starts = list(range(64, value.shape[1], 64))
            value[:, starts] = value[:, [row - 1 for row in starts]]
            return value

        return clean(at.changed(taps, repeated) if at.kind == "prefill" else taps, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


@fault(
    "first-taps-of-prompt-before",
    "the first draft of a later prompt takes the taps that the last draft of the prompt before took",
    TAPS,
    "draft",
    "taps of the committed row of round 1",
    "the draft of round 1 of every prompt but the first",
    "pass = draft and prompt > 1 and round = 1",
)
def _(pipeline: Pipeline) -> None:
    held = []

    def change(at, clean, taps, first, *rest):
        used = held[0] if held and at.prompt > 1 and at.round == 1 else (taps, first)
        held[:] = [(taps, first)]
        return clean(*used, *rest)

    replaced(pipeline, pipeline.drafter, "draft", change)


@fault(
    "fc-rows-interleaved",
    "fc's input rows lie as if the three taps were interleaved number by number",
    FUSED,
    "prefill",
    "order of fc's input rows",
)
def _(pipeline: Pipeline) -> None:
    def change(value):
        return value.reshape(3, -1, value.shape[1]).transpose(1, 0, 2).reshape(value.shape)

    rewritten(pipeline, pipeline.drafter.outer, "fc", change)


@fault(
    "fc-third-tile-lost-in-second-rows",
    "fc's sum lacks its inputs from 256 on in the second tile of 128 prompt rows",
    FUSED,
    "prefill",
    "fc's inputs 256 to 287",
    "prefill rows from 128 on",
    "pass = prefill and row >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, mask_hidden, committed, fc):
        def cut(value):
            value[256:] = 0
            return value

        right = clean(taps, mask_hidden, committed, fc)
        if at.kind == "prefill" and taps.shape[1] > 128:
            wrong = clean(taps, mask_hidden, committed, at.changed(fc, cut))
            right[:, 128:] = wrong[:, 128:]
        return right

    alter(pipeline, "peagle:fuse", change)


@fault(
    "mask-hidden-thirds-reversed",
    "the learnt hidden of masked rows has its three thirds in reverse order",
    FUSED,
    "draft",
    "mask_hidden, order of its thirds",
)
def _(pipeline: Pipeline) -> None:
    def change(value):
        return value.reshape(3, -1)[::-1].reshape(value.shape)

    rewritten(pipeline, pipeline.drafter.outer, "mask_hidden", change)
