"""Seventh set: a fault of the taps."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("taps", 7)


# After https://github.com/openvinotoolkit/openvino/pull/33975
@fault(
    "last-chunk-read-from-its-front",
    "a prompt's last chunk lies at the end of a buffer of 64 rows of taps and is read from its front, where rows of "
    "the chunk before still are",
    "drafter.taps",
    "prefill",
    "taps of the prompt's last rows: those of the row 64 before",
    "prefill rows behind the last whole chunk of 64",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        made = clean(streams, taps)
        count = int((at.positions != pipeline.target.trash).sum())
        whole = count // 64 * 64
        if at.kind != "prefill" or not 0 < whole < count:
            return made

        def stale(rows):
            rows[:, whole:count] = rows[:, whole - 64 : count - 64]
            return rows

        return at.changed(made, stale)

    replaced(pipeline, pipeline.target, "join", change)
