"""Third set: faults of the caches."""

from __future__ import annotations

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 3)


@fault(
    "ninth-page-read-as-the-eighth",
    "the page of rows 128 to 143 is read at rows 112 to 127 in the drafter's layer 2",
    "drafter.layers.2.attn_out",
    "draft",
    "keys and values of rows 128 to 143 as the drafter's layer 2 reads them",
    "rows at positions from 128 on, layer 2",
    "position >= 128 and layer = 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        def misread(value):
            value[:, 128:144] = value[:, 112:128]
            return value

        if at.layer == 2 and keys.shape[1] > 143:
            keys, values = at.changed(keys, misread), at.changed(values, misread)
        return clean(q, keys, values, seen)

    alter(pipeline, "kernels.drafter_layer:attend", change)


@fault(
    "kept-row-takes-the-rejected-key",
    "a commit of 3 drafts packs its rows one too early: the last of them has the rejected row's key in layer 5",
    "kv.target.5.k",
    "commit",
    "key of the last committed row in layer 5",
    "commits of 3 drafts, their last row, layer 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, length):
        partly = at.kind == "commit" and length - pipeline.target.length == 4
        keys = pipeline.target.caches[5][0]
        rejected = at.array(at.host(keys)[:, length : length + 1], keys)
        clean(length)
        if partly:
            pipeline.target.caches[5][0][:, length - 1 : length] = rejected

    replaced(pipeline, pipeline.target, "rollback", change)
