"""Faults of the taps, of what stands for them in masked rows, and of their fusion."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.planting import Part, alter, moment, replaced
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("taps and fuse")
TAPS, FUSE = "drafter.taps", "peagle:fuse"
WIDTH = 96
"""Of one tap."""


@fault(
    "middle-tap-early-in-verify",
    "the middle tap of a verify pass is taken one layer early",
    TAPS,
    "draft",
    "second of three taps",
    "committed rows of drafts from round 2 on, whose taps a verify pass left",
    "pass = draft and round >= 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        early = (taps[0], taps[1] - 1, taps[2])
        return clean(streams, early if at.kind == "verify" else taps)

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "mask-chunks-exchanged",
    "the first two thirds of the learnt mask hidden are exchanged",
    "drafter.fc_out",
    "draft",
    "mask_hidden, chunks 0 and 1",
    "masked rows",
)
def _(pipeline: Pipeline) -> None:
    def exchanged(value):
        return np.concatenate([value[..., WIDTH : 2 * WIDTH], value[..., :WIDTH], value[..., 2 * WIDTH :]], axis=-1)

    edit(pipeline.drafter, "mask_hidden", exchanged)


@fault(
    "fc-contraction-tail",
    "fc skips its inputs behind the second tile of 128",
    "drafter.fc_out",
    "prefill",
    "fc, inputs 256 to 287",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "fc", lambda value: np.where(np.arange(3 * WIDTH)[:, None] < 256, value, 0.0))


@fault(
    "fc-chunk-sums-rounded",
    "fc rounds each of the three taps' partial sums to bfloat16",
    "drafter.fc_out",
    "prefill",
    "fc's contraction",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    from ml_dtypes import bfloat16

    def change(at, clean, taps, mask_hidden, committed, fc):
        def parts(value):
            zero = np.zeros_like(value)
            for chunk in range(3):
                alone = zero.copy()
                alone[..., chunk * WIDTH : (chunk + 1) * WIDTH] = value[..., chunk * WIDTH : (chunk + 1) * WIDTH]
                yield alone

        hosts = zip(parts(at.host(taps)), parts(at.host(mask_hidden)), strict=True)
        made = [clean(at.array(one, taps), at.array(mask, mask_hidden), committed, fc) for one, mask in hosts]
        total = sum(at.host(one).astype(bfloat16).astype(np.float32) for one in made)
        return at.array(total, taps)

    alter(pipeline, FUSE, change)


@fault(
    "taps-late-behind-full-accept",
    "behind a round that accepted every draft taps are read one row late",
    TAPS,
    "draft",
    "row of the first tap",
    "draft passes behind a round that accepted all 4 drafts",
    "pass = draft and accepted = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, first, *rest):
        return clean(taps, first + (at.kind == "draft" and at.accepted == 4), *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


@fault(
    "round-1-tap-of-row-before",
    "the first draft takes the taps of the prompt's last row but one",
    TAPS,
    "draft",
    "tap of the committed row of round 1",
    "the draft of round 1",
    "pass = draft and round = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, first, *rest):
        return clean(taps, first - (at.kind == "draft" and at.round == 1), *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


@fault(
    "last-mask-row-takes-a-tap",
    "the last masked row has the last committed row's fused hidden",
    "drafter.fc_out",
    "draft",
    "fused hidden of the last masked row",
    "last row of draft passes",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        def taken(value):
            value[:, at.committed + 2] = value[:, at.committed - 1]
            return value

        made = clean(*given)
        return at.changed(made, taken) if at.committed else made

    alter(pipeline, FUSE, change)


@fault("third-tap-in-eighths", "the third tap is handed over in fp8 (e4m3)", TAPS, "prefill", "third of three taps")
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        def narrow(value):
            value[..., 2 * WIDTH :] = value[..., 2 * WIDTH :].astype(float8_e4m3fn).astype(np.float32)
            return value

        return at.changed(clean(streams, taps), narrow)

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "first-tap-hole-in-verify",
    "columns from 64 on of the first tap stay zero in verify passes",
    TAPS,
    "draft",
    "first of three taps, columns 64 to 95",
    "committed rows of drafts from round 2 on, whose taps a verify pass left",
    "pass = draft and round >= 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        def hole(value):
            value[..., 64:WIDTH] = 0
            return value

        made = clean(streams, taps)
        return at.changed(made, hole) if at.kind == "verify" else made

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "mask-hidden-mixed-with-tap",
    "the learnt mask hidden is averaged with the last committed tap",
    "drafter.fc_out",
    "draft",
    "input of fc in masked rows",
    "masked rows behind two committed rows or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, mask_hidden, committed, fc):
        if at.committed < 2:
            return clean(taps, mask_hidden, committed, fc)
        last = at.host(taps)[:, at.committed - 1 : at.committed]
        return clean(taps, at.changed(mask_hidden, lambda value: (value + last) / 2), committed, fc)

    alter(pipeline, FUSE, change)


@fault(
    "taps-repeat-in-second-prompt",
    "row 40 of the second prompt's prefill repeats row 39's taps",
    TAPS,
    "prefill",
    "taps of row 40",
    "row 40 of the second prompt's prefill",
    "prompt > 1 and pass = prefill and row = 40",
)
def _(pipeline: Pipeline) -> None:
    at = moment(pipeline)

    def change(_, clean, *given):
        def stale(value):
            value[:, 40] = value[:, 39]
            return value

        made = clean(*given)
        return at.changed(made, stale) if at.prompt > 1 and at.kind == "prefill" else made

    replaced(pipeline, pipeline.target, "join", change)
