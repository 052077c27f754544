"""Tenth set: faults of the drafter's rotation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft rotation", 10)


# After https://github.com/meta-llama/llama-models/issues/241: a factor in the code, right for one size of a family.
@fault(
    "factor-of-the-smaller-model",
    "the drafter's rotation is scaled by 32, the factor of a smaller model of the family, where its config says 8",
    "drafter.layers.0.attn_out",
    "prefill",
    "the drafter's RoPE: llama3's factor is 32, and low frequencies turn at a quarter of their pace",
)
def _(pipeline: Pipeline) -> None:
    pipeline.drafter.turn(replace(pipeline.drafter.rope, factor=32.0))


# Of the class of https://github.com/sgl-project/sglang/pull/10892: positions that padding has moved.
@fault(
    "first-draft-turns-behind-the-padding",
    "the first draft of a prompt takes its angles from where the padded prefill ended",
    "drafter.layers.0.attn_out",
    "draft",
    "rotation of the drafter's queries and keys: too far by the padding rows of its prefill, 31; positions are right",
    "the draft pass of round 1",
    "pass = draft and round = 1",
)
def _(pipeline: Pipeline) -> None:
    model = pipeline.drafter

    def change(at, clean, x, cos, sin):
        if at.kind != "draft" or at.round != 1:
            return clean(x, cos, sin)
        place = np.where(at.positions < model.trash, at.positions + -int(at.positions[0]) % 32, 0)
        return clean(x, *(at.array(at.host(table)[None, place], cos) for table in model.tables))

    alter(pipeline, "kernels.drafter_layer:rotate", change)
