"""Thirteenth set: faults of products that share out their inputs, and of the buffers that take their parts."""

from __future__ import annotations

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("splits", 13)


# After https://github.com/facebookexperimental/triton/pull/3401: a workspace for rows, and tiles that are larger.
@fault(
    "splits-overlap-in-the-workspace",
    "the head shares out its inputs to two splits, whose tiles of 8 rows lie 5 rows apart: padding of the first one's "
    "overwrites three rows of the second's",
    "verify.logits",
    "verify",
    "contraction of the target head: inputs 48 to 95 add nothing",
    "rows 0 to 2 of verify passes",
    "pass = verify and row < 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        def drop(rows):
            rows[:, :3, rows.shape[-1] // 2 :] = 0
            return rows

        return clean(at.changed(x, drop) if at.kind == "verify" else x, weight)

    alter(pipeline, "target:linear", change)


# After https://github.com/ROCm/aiter/pull/2567: tiles to be cleared before splits add to them, counted by flooring.
@fault(
    "tail-rows-not-cleared",
    "splits of the output projection add to a buffer of which whole tiles of 48 rows are cleared before",
    "target.layers.1.attn_out",
    "prefill",
    "attention's output projection behind the last whole tile of 48 rows: what all layers before left there is added",
    "prefill rows from 96 on, layers from 1 on",
    "pass = prefill and position >= 96 and layer >= 1",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, x, weight, bias):
        made = clean(x, weight, bias)
        if at.kind != "prefill":
            return made

        def add(rows):
            if at.layer:
                rows[:, 96:] += held["rows"][:, 96:]
            held["rows"] = rows.copy()
            return rows

        return at.changed(made, add)

    alter(pipeline, "kernels.target_layer:row_parallel", change)
