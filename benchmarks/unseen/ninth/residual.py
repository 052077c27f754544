"""Ninth set: faults of residual streams, the target's and the drafter's."""

from __future__ import annotations

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("residual", 9)


# From the equations: a last tile that is moved back to fit, and an addition in place.
@fault(
    "overlapping-tiles-add-twice",
    "the experts' output is added in place in tiles of 64 columns, the second moved back to end with the row, and "
    "where they overlap it is added twice",
    "target.layers.0.out",
    "prefill",
    "residual addition behind the experts in every layer, columns 32 to 63: their output counts twice",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, held, x, step, tap):
        added = {}

        def twice(rows):
            rows[..., 32:64] += added["ffn_out"][..., 32:64]
            return rows

        def show(part, value):
            made = tap(part, at.changed(value, twice) if part == "out" else value)
            if part == "ffn_out":
                added[part] = at.host(made)
            return made

        return clean(held, x, step, show)

    replaced(pipeline, pipeline.target, "layer", change)


# From the equations: a kernel for four rows, and a fifth that finds what the fourth left.
@fault(
    "fifth-row-adds-the-fourth",
    "the addition behind attention is unrolled for four rows, and a fifth adds what is left of the fourth's output",
    "target.layers.0.router_logits",
    "verify",
    "residual addition behind attention in every layer: row 4 adds attention's output of row 3",
    "row 4 of verify passes",
    "pass = verify and row = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, held, x, step, tap):
        def fourth(rows):
            rows[:, 4] = rows[:, 3]
            return rows

        def show(part, value):
            made = tap(part, value)
            return at.changed(made, fourth) if part == "attn_out" and at.kind == "verify" else made

        return clean(held, x, step, show)

    replaced(pipeline, pipeline.target, "layer", change)


# From the equations: a layer of two inputs, and the wrong one of them is its residual.
@fault(
    "embedding-as-the-residual",
    "the midlayer adds attention's output to the embedding, not to the fused hidden",
    "drafter.layers.0.ffn_out",
    "prefill",
    "the residual of the drafter's layer 0: the row's embedding",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, embedded, fused, step, weights, held, config, tap):
        def other(rows):
            return rows + at.host(embedded) - at.host(fused)

        def show(part, value):
            made = tap(part, value)
            return at.changed(made, other) if part == "attn_out" else made

        return clean(embedded, fused, step, weights, held, config, show)

    alter(pipeline, "drafter:midlayer", change)


# From the equations: the last addition of a layer is launched for as many rows as are committed.
@fault(
    "masked-rows-without-feed-forward",
    "the addition behind the drafter's feed-forward is launched for the committed rows of a draft pass alone",
    "drafter.layers.0.out",
    "draft",
    "residual addition behind the feed-forward in every drafter layer: masked rows go without its output",
    "masked rows",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        *inputs, tap = given

        def without(rows):
            rows[:, at.committed : at.committed + at.masked] = 0
            return rows

        def show(part, value):
            made = tap(part, value)
            return at.changed(made, without) if part == "ffn_out" and at.kind == "draft" else made

        return clean(*inputs, show)

    for layer in ("midlayer", "plain_layer"):
        alter(pipeline, f"drafter:{layer}", change)
