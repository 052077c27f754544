"""Faults of the drafter's fc, of its learnt hidden and of its embeddings."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("taps, fuse and embedding", 20)
WIDTH, PLACEHOLDER = 96, 1275
"""Of one tap; the token of masked rows."""


@fault(
    "fc-last-k-tile-lost",
    "fc sums over whole tiles of 128 inputs: the last 32 of its 288 inputs are left out",
    "drafter.fc_out",
    "prefill",
    "fc's inputs 256 to 287, the last 32 columns of the third tap",
)
def _(pipeline: Pipeline) -> None:
    def cut(value):
        value = value.copy()
        value[256:] = 0
        return value

    rewritten(pipeline, pipeline.drafter.outer, "fc", cut)


@fault(
    "fc-tap-sums-in-bfloat16",
    "fc is three products, one for each tap, each rounded to bfloat16 before they are added",
    "drafter.fc_out",
    "prefill",
    "partial sums of fc",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, mask_hidden, committed, fc):
        whole, total = at.host(fc), 0
        for start in range(0, len(whole), WIDTH):
            part = np.zeros_like(whole)
            part[start : start + WIDTH] = whole[start : start + WIDTH]
            made = at.host(clean(taps, mask_hidden, committed, at.array(part, fc)))
            total = total + made.astype(bfloat16).astype(np.float32)
        return at.array(total, taps)

    alter(pipeline, "peagle:fuse", change)


@fault(
    "mask-hidden-taps-turned",
    "the parts of mask_hidden that stand for the three taps are one place further on",
    "drafter.fc_out",
    "draft",
    "mask_hidden of the masked rows: order of its three parts",
)
def _(pipeline: Pipeline) -> None:
    rewritten(pipeline, pipeline.drafter.outer, "mask_hidden", lambda value: np.roll(value, WIDTH, axis=-1))


@fault(
    "placeholder-embedded-as-padding",
    "the placeholder's id is taken as that of padding: its embedding is zero",
    "drafter.layers.0.attn_out",
    "draft",
    "the drafter's embedding of the placeholder token, in masked rows",
)
def _(pipeline: Pipeline) -> None:
    def zeroed(value):
        value = value.copy()
        value[PLACEHOLDER] = 0
        return value

    rewritten(pipeline, pipeline.drafter.outer, "embed", zeroed)


@fault(
    "embedding-shard-one-row-on",
    "the third of four shards of the drafter's embedding table begins one row too late",
    "drafter.layers.0.attn_out",
    "prefill",
    "the drafter's embeddings of token ids 640 to 959, each that of the id behind",
    "rows whose token id is 640 to 959",
)
def _(pipeline: Pipeline) -> None:
    def moved(value):
        value = value.copy()
        value[640:960] = value[641:961].copy()
        return value

    rewritten(pipeline, pipeline.drafter.outer, "embed", moved)


@fault(
    "every-committed-row-the-last-tap",
    "a draft pass keeps one hidden alone: all its committed rows have the taps of the last one",
    "drafter.taps",
    "draft",
    "taps of the committed rows in front of the last one",
    "draft passes behind a round that accepted a draft",
    "pass = draft and accepted >= 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, first, count, *rest):
        def spread(value):
            value[:, first : first + count] = value[:, first + count - 1 : first + count].copy()
            return value

        given = at.changed(taps, lambda value: spread(value.copy())) if at.kind == "draft" else taps
        return clean(given, first, count, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


@fault(
    "first-draft-of-old-token",
    "the slot of the token to draft behind is not written by a prefill: the first draft has the prompt before's last",
    "drafter.input_ids",
    "draft",
    "id of the committed row of round 1",
    "the first draft of each prompt but the first",
    "pass = draft and prompt > 1 and round = 1 and row = 0",
)
def _(pipeline: Pipeline) -> None:
    held: dict[str, int] = {}

    def emitted(at, clean, *given):
        made = clean(*given)
        held["last"] = int(made[-1])
        return made

    def layout(at, clean, ids, others):
        if at.kind == "draft" and at.prompt > 1 and at.round == 1:
            ids = np.concatenate([[held.get("last", ids[0])], ids[1:]])
        return clean(ids, others)

    replaced(pipeline, pipeline, "commit", emitted)
    replaced(pipeline, pipeline.drafter, "layout", layout)
