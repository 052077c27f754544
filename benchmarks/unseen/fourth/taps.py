"""Fourth set: faults of the taps and of what fuses them."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("taps and fuse", 4)
CHUNK, WIDTH = 64, 96
"""Rows that are handed over at a time; columns of a tap."""


@fault(
    "second-tap-before-the-experts",
    "the second tap is taken before the experts' output of its layer is added",
    "drafter.taps",
    "prefill",
    "second of three taps",
)
def _(pipeline: Pipeline) -> None:
    added = {}

    def layer(at, clean, held, x, step, tap):
        def keep(part, value):
            added[held, part] = tap(part, value)
            return added[held, part]

        return clean(held, x, step, keep)

    def join(at, clean, streams, taps):
        def early(value):
            value[..., WIDTH : 2 * WIDTH] -= at.host(added[taps[1] - 1, "ffn_out"])
            return value

        return at.changed(clean(streams, taps), early)

    replaced(pipeline, pipeline.target, "layer", layer)
    replaced(pipeline, pipeline.target, "join", join)


@fault(
    "chunks-of-taps-overlap",
    "the prompt's taps are handed over in chunks of 64 rows, and the second one begins a row early",
    "drafter.taps",
    "prefill",
    "taps of prefill rows from 64 on",
    "prefill rows from 64 on",
    "pass = prefill and row >= 64",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, *rest):
        def late(value):
            value[:, CHUNK:] = value[:, CHUNK - 1 : -1].copy()
            return value

        return clean(at.changed(taps, late) if at.kind == "prefill" else taps, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


@fault(
    "first-row-recycles-a-hidden",
    "the first committed row of a draft pass takes the drafter's last hidden of the round before, not its fused taps",
    "drafter.fc_out",
    "draft",
    "fused hidden of the first committed row",
    "first row of draft passes from round 2 on",
    "pass = draft and round >= 2 and row = 0",
)
def _(pipeline: Pipeline) -> None:
    last = {}

    def run(at, clean, *given):
        made = clean(*given)
        if at.kind == "draft":
            last[at.prompt, at.round] = at.host(made)[:, at.committed - 1]
        return made

    def change(at, clean, *given):
        before = last.get((at.prompt, at.round - 1)) if at.kind == "draft" else None

        def recycled(value):
            value[:, 0] = before
            return value

        made = clean(*given)
        return made if before is None else at.changed(made, recycled)

    replaced(pipeline, pipeline.drafter, "run", run)
    replaced(pipeline, pipeline.drafter, "fused", change)
