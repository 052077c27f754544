"""Thirteenth set: faults of taps and of their fusion."""

from __future__ import annotations

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("taps", 13)


# After https://github.com/Blaizzy/mlx-vlm/pull/2096: hidden states that the last chunk alone is asked for.
@fault(
    "taps-of-the-last-chunk-alone",
    "a prompt runs in chunks of 64, and taps are taken in the last one alone; the others' rows are zero",
    "drafter.taps",
    "prefill",
    "all three taps: zero",
    "prefill rows in front of a prompt's last chunk of 64: 0 to 127 of 130, 0 to 63 of 98",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, first, count, *rest):
        def drop(rows):
            rows[:, : count // 64 * 64] = 0
            return rows

        return clean(at.changed(taps, drop) if at.kind == "prefill" else taps, first, count, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


# After https://github.com/ROCm/rocm-libraries/pull/6663: a hot loop that is entered with three tiles, and runs five.
@fault(
    "three-tiles-run-as-five",
    "fc runs over three tiles of 96 inputs, enters a loop that is for four or more, and adds up the last two once more",
    "drafter.fc_out",
    "prefill",
    "contraction of fc: inputs 96 to 287, the second and the third tap, count twice",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, mask_hidden, committed, fc):
        def twice(rows):
            rows[96:] *= 2
            return rows

        return clean(taps, mask_hidden, committed, at.changed(fc, twice))

    alter(pipeline, "peagle:fuse", change)


# From the equations: a learnt hidden that is copied to one row, where it is meant for all that follow.
@fault(
    "later-masked-rows-empty",
    "the learnt hidden is copied to the first masked row, and those behind it keep zeros",
    "drafter.fc_out",
    "draft",
    "fused hidden of masked rows but the first: zero",
    "masked rows but the first",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        def drop(rows):
            rows[:, at.committed + 1 : at.committed + at.masked] = 0
            return rows

        made = clean(*given)
        return at.changed(made, drop) if at.masked > 1 else made

    alter(pipeline, "peagle:fuse", change)
