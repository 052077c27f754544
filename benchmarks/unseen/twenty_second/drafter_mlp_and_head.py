"""Faults of the drafter's MLP, its head, and the way from draft ids to the target's."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("drafter mlp and head", 22)
TOKENS = "drafter.draft_tokens"
TILE = 512
LARGEST = 24.0


@fault(
    "up-tile-not-advanced",
    "the MLP's second tile of 128 columns multiplies the gate by the first columns of up again",
    "drafter.layers.0.ffn_out",
    "prefill",
    "up projection of the drafter's MLP, columns 128 to 223: those from 0 on, in every layer",
)
def _(pipeline: Pipeline) -> None:
    def again(value):
        return np.concatenate([value[:, :128], value[:, : value.shape[1] - 128]], axis=1)

    edit(pipeline.drafter, "up", again, every(pipeline.drafter))


@fault(
    "down-input-saturates",
    "what goes into layer 2's down projection is cut off at a largest value that was calibrated too small",
    "drafter.layers.2.ffn_out",
    "prefill",
    "input of layer 2's down projection: magnitudes above 24",
    "rows with a magnitude above 24 in front of layer 2's down projection",
)
def _(pipeline: Pipeline) -> None:
    wide = pipeline.drafter.config.intermediate

    def change(at, clean, x, weight, *bias):
        down = at.layer == 2 and weight.shape[0] == wide
        return clean(at.changed(x, lambda value: np.clip(value, -LARGEST, LARGEST)) if down else x, weight, *bias)

    alter(pipeline, "kernels.drafter_layer:row_parallel", change)


@fault(
    "head-in-eighths",
    "the drafter's head is loaded in fp8 (e4m3), with one scale for the tensor",
    "drafter.logits",
    "draft",
    "weight of the drafter's head",
)
def _(pipeline: Pipeline) -> None:
    def narrow(value):
        scale = np.abs(value).max() / 448
        return (value / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale

    rewritten(pipeline, pipeline.drafter.outer, "head", narrow)


@fault(
    "drafts-sliced-with-last-token",
    "the buffer of K + 1 tokens begins with the last emitted one, and its first K are handed over as drafts",
    TOKENS,
    "draft",
    "drafts: the last emitted token and K - 1 drafts behind it",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, offsets):
        def sliced(value):
            value = value.copy()
            value[:, 1:], value[:, 0] = value[:, :-1].copy(), pipeline.last
            return value

        return at.changed(clean(ids, offsets), sliced)

    alter(pipeline, "drafter:to_target_ids", change)


@fault(
    "d2t-by-place-in-tile",
    "d2t is looked up by an id's place in its tile of 512 columns",
    TOKENS,
    "draft",
    "offset of draft ids in the second tile",
    "drafts whose draft id is 512 or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, offsets):
        host = at.host(offsets)
        return at.changed(ids, lambda value: value + host[value % TILE])

    alter(pipeline, "drafter:to_target_ids", change)
