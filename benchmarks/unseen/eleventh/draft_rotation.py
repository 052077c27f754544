"""Eleventh set: faults of the drafter's rotation."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.kernels.rope import frequencies
from parity.device.pipeline import Pipeline
from parity.device.rope_config import RopeConfig

fault = Part("draft rotation", 11)
Tables = tuple[np.ndarray, np.ndarray]


def waves(pace: np.ndarray, positions: int) -> Tables:
    """cos and sin, float32 [positions, D/2], of frequencies in radians a position."""
    angles = np.arange(positions)[:, None] * pace
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def smooth(rope: RopeConfig, pace: np.ndarray) -> np.ndarray:
    """How much of each frequency llama3's scaling leaves as it is, from 0 to 1."""
    rotations = rope.original * pace / (2 * np.pi)
    share: np.ndarray = np.clip((rotations - rope.slow) / (rope.fast - rope.slow), 0, 1)
    return share


# Of the class of https://github.com/huggingface/transformers/pull/32330: llama3's band of middle frequencies.
@fault(
    "blend-the-other-way-round",
    "between its two bands the drafter's scaling gives the plain frequency the scaled one's share",
    "drafter.layers.0.attn_out",
    "prefill",
    "the drafter's RoPE: pairs 2 and 3 turn by 0.43 and 0.83 of their plain pace, where 0.69 and 0.30 are meant",
)
def _(pipeline: Pipeline) -> None:
    model, rope, at = pipeline.drafter, pipeline.drafter.rope, moment(pipeline)
    dim = model.config.attention.head_dim
    plain = rope.theta ** (-np.arange(0, dim, 2) / dim)
    share = smooth(rope, plain)
    share = np.where((share > 0) & (share < 1), 1 - share, share)
    pace = plain * share + plain / rope.factor * (1 - share)
    model.tables = tuple(at.engine.array(table) for table in waves(pace, model.positions))


# From the equations: a scaling in place, which every new text runs again.
@fault(
    "frequencies-scaled-again",
    "the drafter's frequencies are scaled in place when a text begins, also those that a text before has scaled",
    "drafter.layers.0.attn_out",
    "prefill",
    "the drafter's RoPE: llama3's scaling is applied to frequencies that have it already",
    "the second prompt and those behind it",
    "prompt >= 2",
)
def _(pipeline: Pipeline) -> None:
    model = pipeline.drafter
    pace = frequencies(model.rope, model.config.attention.head_dim)
    share = smooth(model.rope, pace)
    pair = waves(pace * share + pace / model.rope.factor * (1 - share), model.positions)

    def change(at, clean, x, cos, sin):
        if at.prompt < 2:
            return clean(x, cos, sin)
        place = np.where(at.positions < model.trash, at.positions, 0)
        return clean(x, *(at.array(table[None, place], cos) for table in pair))

    alter(pipeline, "kernels.drafter_layer:rotate", change)
