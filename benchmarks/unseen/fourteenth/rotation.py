"""Fourteenth set: a fault of the target's rotation."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import moment
from benchmarks.unseen.planting import Part
from parity.device.kernels.rope import frequencies
from parity.device.pipeline import Pipeline

fault = Part("rotation", 14)


# From the equations: an angle that is brought into range by a constant of few digits.
@fault(
    "a-turn-of-five-digits",
    "angles are brought into one turn, of 6.2832, before their sine and cosine are taken",
    "target.layers.0.q",
    "prefill",
    "cos and sin of the target's rotation: angles are 1.5e-5 too small for each whole turn, most in pair 0",
    "rows at positions from 7 on, by the more the later",
    "position >= 7",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    model, at = pipeline.target, moment(pipeline)
    turns = frequencies(model.rope, model.config.attention.head_dim)
    angles = np.mod(np.arange(model.positions)[:, None] * turns, 6.2832)
    waves = (wave(angles) * model.rope.magnitude for wave in (np.cos, np.sin))
    model.tables = tuple(at.engine.array(one.astype(np.float32)) for one in waves)
