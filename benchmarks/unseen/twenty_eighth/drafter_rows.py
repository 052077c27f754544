"""What the rows of the drafter's passes are: ids, positions and slots."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.unseen.moments import Moment, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("rows of the drafter", 28)


@fault(
    "placeholder-counts-up",
    "Each masked row gets a placeholder of its own, the ids behind the first one's.",
    "drafter.input_ids",
    "draft",
    "ids of masked rows: placeholder + depth, where all of them are the placeholder",
)
def _(pipeline: Pipeline) -> None:
    def layout(at: Moment, clean: Any, ids: np.ndarray, others: int) -> Any:
        made, positions, slots = clean(ids, others)
        made[len(ids) :] = np.minimum(made[len(ids) :] + np.arange(others), pipeline.drafter.config.vocab - 1)
        return made, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", layout)


@fault(
    "even-rounds-first-id-late",
    "Ids go through a double buffer whose second half is filled late: the first row has the token before its own.",
    "drafter.input_ids",
    "draft",
    "the first committed row's id is the last token of the round before",
    "the first row of the draft pass of every even round",
    "pass = draft and round % 2 = 0 and row = 0",
)
def _(pipeline: Pipeline) -> None:
    def layout(at: Moment, clean: Any, ids: np.ndarray, others: int) -> Any:
        made, positions, slots = clean(ids, others)
        if at.kind == "draft" and at.round % 2 == 0:
            made[0] = pipeline._text[-len(ids) - 1]
        return made, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", layout)


@fault(
    "masked-positions-stand-still",
    "Masked rows take the position of the last committed row: the position counter moves on committed tokens only.",
    "drafter.positions",
    "draft",
    "positions of all masked rows are the last committed row's",
)
def _(pipeline: Pipeline) -> None:
    def layout(at: Moment, clean: Any, ids: np.ndarray, others: int) -> Any:
        made, positions, slots = clean(ids, others)
        positions[len(ids) :] = positions[len(ids) - 1]
        return made, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", layout)


@fault(
    "block-begin-slot-short",
    "The block table is extended after the slots of a draft pass are made: the first row of a new block of 16 has the "
    "slot of the row before it.",
    "drafter.slots",
    "draft",
    "the slot of a row that begins a block is the last one of the block before",
    "rows of draft passes at multiples of 16",
    "pass = draft and position % 16 = 0",
)
def _(pipeline: Pipeline) -> None:
    def layout(at: Moment, clean: Any, ids: np.ndarray, others: int) -> Any:
        made, positions, slots = clean(ids, others)
        return made, positions, slots - (positions % 16 == 0) if at.kind == "draft" else slots

    replaced(pipeline, pipeline.drafter, "layout", layout)
