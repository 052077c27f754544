"""Faults of a draft pass's rows: tokens, embeddings, positions, slots."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("draft rows", 27)
PAGE = 16


@fault(
    "drafter-embeds-special-tokens-as-zero",
    "the drafter's embedding has no rows of the tokenizer's added tokens, but of the placeholder: they are zero",
    "drafter.layers.0.attn_out",
    "prefill",
    "embedding of ids 1264 to 1274",
    "rows whose token is an added one, ids 1264 to 1274, and rows that see them",
)
def _(pipeline: Pipeline) -> None:
    def trimmed(value):
        value = value.copy()
        value[1264:1275] = 0
        return value

    edit(pipeline.drafter, "embed", trimmed)


@fault(
    "positions-miss-bonus-behind-full-accept",
    "behind a round that accepted every draft positions are counted without the bonus token",
    "drafter.positions",
    "draft",
    "positions of all rows, one too small",
    "drafts behind a round that accepted all of its K drafts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        ids, positions, slots = clean(ids, others)
        late = at.kind == "draft" and at.accepted == pipeline.k
        return ids, positions - late, slots

    replaced(pipeline, pipeline.drafter, "layout", change)


@fault(
    "last-masked-row-keeps-pad-token",
    "the loop that fills in the placeholder stops one row early: the last masked row has the id of padding",
    "drafter.input_ids",
    "draft",
    "id of the last masked row",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        ids, positions, slots = clean(ids, others)
        if others:
            ids[-1] = 0
        return ids, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)


@fault(
    "draft-slots-stay-in-first-page",
    "the page of all rows of a draft is that of its first row: rows of the next page go to this one's beginning",
    "drafter.slots",
    "draft",
    "slots of rows behind the end of the first row's page of 16",
    "rows of a draft that lie in a later page of 16 than its first row",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        ids, positions, slots = clean(ids, others)
        if at.kind == "draft":
            slots = slots[0] // PAGE * PAGE + slots % PAGE
        return ids, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)


@fault(
    "first-draft-token-of-previous-prompt",
    "the first draft of a later prompt runs over the token that the last draft of the prompt before ran over",
    "drafter.input_ids",
    "draft",
    "id of the committed row of round 1",
    "the first draft of every prompt but the first, row 0",
    "prompt > 1 and pass = draft and round = 1 and row = 0",
)
def _(pipeline: Pipeline) -> None:
    held: dict[str, Any] = {}

    def change(at, clean, taps, first, committed, *rest):
        stale = at.prompt > 1 and at.round == 1 and "last" in held
        ran = np.array([*committed[:-1], held["last"]]) if stale else committed
        held["last"] = int(committed[-1])
        return clean(taps, first, ran, *rest)

    replaced(pipeline, pipeline.drafter, "draft", change)
