"""Faults of P-EAGLE's masked rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("masked rows", 24)


@fault(
    "mask-hidden-chunks-in-reverse-order",
    "the three chunks of mask_hidden are stored from the last tap's to the first's",
    "drafter.fc_out",
    "draft",
    "order of the chunks of mask_hidden",
)
def _(pipeline: Pipeline) -> None:
    def reversed_chunks(value):
        return value.reshape(*value.shape[:-1], 3, -1)[..., ::-1, :].reshape(value.shape)

    edit(pipeline.drafter, "mask_hidden", reversed_chunks)


@fault(
    "masked-rows-blind-to-earlier-masked-rows",
    "a masked row sees the committed rows and itself, but no masked row in front of it",
    "drafter.layers.0.attn_out",
    "draft",
    "mask of the masked rows behind the first",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        held, first = at.host(seen).copy(), at.committed
        for row in range(first + 1, first + at.masked):
            held[:, row, at.positions[first] : at.positions[row]] = False
        return clean(q, keys, values, at.array(held, seen))

    alter(pipeline, "kernels.drafter_layer:attend", change)


@fault(
    "masked-positions-behind-widest-committed-block",
    "positions of masked rows begin behind K + 1 committed rows, however many there are",
    "drafter.positions",
    "draft",
    "positions of masked rows",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        made, positions, slots = clean(ids, others)
        positions[len(ids) :] += pipeline.k + 1 - len(ids)
        return made, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)


@fault(
    "mask-hidden-left-from-prompt-before",
    "in every third prompt the buffer of mask_hidden holds the last tap row of the prompt before",
    "drafter.fc_out",
    "draft",
    "learnt hidden of masked rows",
    "masked rows of the third and sixth prompt",
    "pass = draft and prompt % 3 = 0",
)
def _(pipeline: Pipeline) -> None:
    kept: list[Any] = []

    def change(at, clean, taps, mask_hidden, committed, fc):
        if at.kind == "draft" and at.prompt % 3 == 0 and kept:
            return clean(taps, kept[0], committed, fc)
        if at.kind == "draft":
            kept[:] = [at.array(at.host(taps)[:, at.committed - 1 : at.committed], taps)]
        return clean(taps, mask_hidden, committed, fc)

    alter(pipeline, "peagle:fuse", change)


@fault(
    "draft-rotation-stale-every-fourth-round",
    "of four buffers of cos and sin the last is not filled: every fourth draft turns by those of the draft before",
    "drafter.layers.0.attn_out",
    "draft",
    "cos and sin of the draft pass",
    "drafts of rounds 4, 8 and so on",
    "pass = draft and round % 4 = 0",
)
def _(pipeline: Pipeline) -> None:
    kept: list[Any] = []

    def change(at, clean, rows):
        made = clean(rows)
        if at.kind == "draft" and at.round % 4 == 0 and kept and kept[0].cos.shape == made.cos.shape:
            return replace(made, cos=kept[0].cos, sin=kept[0].sin)
        kept[:] = [made]
        return made

    replaced(pipeline, pipeline.drafter, "step", change)
