"""Fourteenth set: faults of the drafter's attention."""

from __future__ import annotations

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft attention", 14)
ATTEND = "kernels.drafter_layer:attend"


# After https://github.com/Dao-AILab/flash-attention/issues/2842: an early exit by the offsets of another layout.
@fault(
    "early-exit-clears-by-another-layout",
    "padding rows of a draft pass exit early, and clear their output where it would lie head by head",
    "drafter.layers.0.attn_out",
    "draft",
    "attention of every drafter layer: zero for a head of a row whose number, 12 row + head, is 8 h + p for a padding "
    "row p of the 8 and any head h",
    "draft passes with padding rows: those of fewer than 5 committed rows",
)
def _(pipeline: Pipeline) -> None:
    heads = pipeline.drafter.config.attention.heads

    def change(at, clean, *given):
        made = clean(*given)
        if at.kind != "draft":
            return made

        def clear(rows):
            places = rows.reshape(heads, rows.shape[1], -1).copy()
            places[:, at.committed + at.masked :] = 0
            return places.reshape(rows.shape)

        return at.changed(made, clear)

    alter(pipeline, ATTEND, change)


# From the equations: an output that lies head by head, and a reshape for one that lies row by row.
@fault(
    "output-not-turned-back",
    "attention's output lies head by head in draft passes, and is reshaped to rows without a transposition",
    "drafter.layers.0.attn_out",
    "draft",
    "input of the output projection in every drafter layer: heads and rows of the pass, 12 by 8, are read as 8 by 12",
    "draft passes",
    "pass = draft",
)
def _(pipeline: Pipeline) -> None:
    heads = pipeline.drafter.config.attention.heads

    def turned(rows):
        return rows.reshape(rows.shape[1], heads, -1).swapaxes(0, 1).reshape(rows.shape)

    def change(at, clean, *given):
        made = clean(*given)
        return at.changed(made, turned) if at.kind == "draft" else made

    alter(pipeline, ATTEND, change)
