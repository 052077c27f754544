"""Fourth set: a fault of the caches."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 4)


@fault(
    "kept-rows-copied-with-groups-exchanged",
    "a commit that does not keep its whole pass copies the kept keys with kv groups 2 and 3 exchanged in layer 4",
    "kv.target.4.k",
    "commit",
    "keys of kv groups 2 and 3 of the kept rows in layer 4",
    "rows of commits that keep fewer than 5, layer 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, length):
        before = pipeline.target.length
        clean(length)
        if at.kind == "commit" and length - before <= pipeline.k:
            keys = pipeline.target.caches[4][0]
            rows = at.host(keys)[:, before:length]
            keys[:, before:length] = at.array(rows[:, :, [0, 1, 3, 2]], keys)

    replaced(pipeline, pipeline.target, "rollback", change)
