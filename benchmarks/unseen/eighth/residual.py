"""Eighth set: faults of residual streams."""

from __future__ import annotations

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("residual", 8)


# Of the class of https://github.com/sgl-project/sglang/issues/37187: what each rank adds where one of them should.
@fault(
    "residual-of-both-ranks",
    "where rows are few the reduction behind attention adds the residual itself, in the upper half of layers on both "
    "of two ranks",
    "target.layers.4.router_logits",
    "verify",
    "residual addition behind attention: the stream that enters the layer counts twice",
    "verify passes, layers from 4 on",
    "pass = verify and layer >= 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, held, x, step, tap):
        def again(part, value):
            made = tap(part, value)
            return at.changed(made, lambda rows: rows + at.host(x)) if part == "attn_out" else made

        return clean(held, x, step, again if held >= 4 and at.kind == "verify" else tap)

    replaced(pipeline, pipeline.target, "layer", change)


# From the equations: an addition of whole vectors of 64, and a remainder that only full passes run.
@fault(
    "remainder-without-residual",
    "in draft passes that are not full, layer 1 adds attention to the first 64 columns of the residual alone, and "
    "keeps attention's output in the others",
    "drafter.layers.1.ffn_out",
    "draft",
    "residual addition behind layer 1's attention, columns 64 to 95: the residual is missing",
    "draft passes of fewer than 8 rows, which do not follow a round that accepted all 4 drafts; layer 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, step, weights, held, config, tap):
        def without(rows):
            rows[..., 64:] -= at.host(x)[..., 64:]
            return rows

        def show(part, value):
            made = tap(part, value)
            return at.changed(made, without) if part == "attn_out" else made

        narrow = at.kind == "draft" and at.committed + at.masked < 8
        return clean(x, step, weights, held, config, show if narrow and at.layer == 1 else tap)

    alter(pipeline, "drafter:plain_layer", change)
