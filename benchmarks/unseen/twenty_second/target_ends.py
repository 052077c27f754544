"""Faults of the target's caches, final norm, head and taps."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("target caches, final norm, head and taps", 22)
PAGE, WIDTH = 16, 96


@fault(
    "values-cached-dim-major",
    "value rows are written in the order (dim, head) into a cache of (head, dim)",
    "target.layers.0.attn_out",
    "prefill",
    "layout of rows in the value cache of every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        return (rows.swapaxes(2, 3).reshape(rows.shape) if part == "v" else rows), slots

    writing(pipeline, "target", change)


@fault(
    "rows-wrap-in-first-page",
    "rows of a verify pass that cross the end of a page of 16 are written to the beginning of the same page",
    "target.layers.0.attn_out",
    "verify",
    "page that keys and values are written to, every layer",
    "rows of a verify pass that lie in a later page of 16 than its first row, and rows that see them",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        return rows, (slots[:, :1] // PAGE * PAGE + slots % PAGE if at.kind == "verify" else slots)

    writing(pipeline, "target", change)


@fault(
    "final-norm-weight-half-loaded",
    "in even rounds columns from 64 on of the final norm's weight are not there yet, and count as one",
    "target.pre_head_hidden",
    "verify",
    "final norm's weight, columns 64 to 95",
    "verify passes of even rounds",
    "pass = verify and round % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        def half(value):
            return np.concatenate([value[:64], np.ones_like(value[64:])])

        early = at.kind == "verify" and at.round % 2 == 0
        return clean(x, at.changed(weight, half) if early else weight, eps)

    alter(pipeline, "target:gpt_oss_norm", change)


@fault(
    "last-vocabulary-tile-moved-back",
    "the head is read in tiles of 512 ids, and the last one is moved back to fit: ids from 1024 on have 768's columns",
    "target.logits",
    "prefill",
    "head's columns 1024 to 1279, which are those of 768 to 1023",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "head", lambda value: np.concatenate([value[:, :1024], value[:, 768:1024]], axis=1))


@fault(
    "odd-rows-keep-last-tile",
    "odd rows of a verify pass keep the row before's logits in the last tile of the vocabulary",
    "verify.logits",
    "verify",
    "logits of ids from 1024 on",
    "odd rows of a verify pass",
    "pass = verify and row % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        def kept(value):
            odd = np.arange(1, value.shape[1], 2)
            value[:, odd, 1024:] = value[:, odd - 1, 1024:]
            return value

        made = clean(*given)
        return at.changed(made, kept) if at.kind == "verify" else made

    alter(pipeline, "target:linear", change)


@fault(
    "taps-element-by-element",
    "the three taps are stacked behind the hidden axis: their elements alternate instead of lying side by side",
    "drafter.taps",
    "prefill",
    "order of the taps' elements",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        def stacked(value):
            return value.reshape(*value.shape[:2], 3, WIDTH).swapaxes(2, 3).reshape(value.shape)

        return at.changed(clean(streams, taps), stacked)

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "first-tap-whole-tiles-only",
    "the first tap of a prefill is copied in tiles of 32 rows, what is left behind the last whole one stays zero",
    "drafter.taps",
    "prefill",
    "first of three taps",
    "prompt rows behind the last whole tile of 32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        made = clean(streams, taps)
        if at.kind != "prefill":
            return made
        whole = int((at.positions != pipeline.target.trash).sum()) // 32 * 32

        def rest(value):
            value[:, whole:, :WIDTH] = 0
            return value

        return at.changed(made, rest)

    replaced(pipeline, pipeline.target, "join", change)
