"""Faults of the target's rotary embedding."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.kernels.rope import yarn_bounds
from parity.device.pipeline import Pipeline

fault = Part("target rotary embedding", 25)
ROTATE = "kernels.target_layer:rotate"


def turned(at, clean, x, cos, sin, positions):
    """x rotated by the tables' rows of these positions [W]."""
    waves = (at.host(table)[positions][None] for table in at.pipeline.target.tables)
    return clean(x, *(at.array(wave, like) for wave, like in zip(waves, (cos, sin), strict=True)))


@fault(
    "inverse-frequencies-spaced-with-endpoint-included",
    "the exponents of theta run from 0 to 1 with the end included, YaRN's ramp over them is right",
    "target.layers.0.q",
    "prefill",
    "exponents of the inverse frequencies",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target
    rope, half = target.rope, 16
    plain = rope.theta ** -np.linspace(0, 1, half)
    low, high = yarn_bounds(rope, half)
    ramp = np.clip((np.arange(half) - low) / (high - low), 0, 1)
    angles = np.arange(target.positions)[:, None] * (plain * (1 - ramp) + plain / rope.factor * ramp)
    waves = ((wave(angles) * rope.magnitude).astype(np.float32) for wave in (np.cos, np.sin))
    target.tables = tuple(target.engine.array(wave) for wave in waves)


@fault(
    "rotary-lookup-wraps-at-table-tile-of-128",
    "the table is looked up by the position modulo 128",
    "target.layers.0.q",
    "prefill",
    "row of the rotary table",
    "positions from 128 on",
    "position >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        return turned(at, clean, x, cos, sin, at.positions % 128)

    alter(pipeline, ROTATE, change)


@fault(
    "keys-rotate-one-early-behind-two-accepted-drafts",
    "behind a round that accepted two drafts or more a verify pass rotates keys by the position before their own",
    "target.layers.0.k",
    "verify",
    "position that keys are rotated by",
    "verify passes behind a round that accepted 2 drafts or more",
    "pass = verify and accepted >= 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        early = at.kind == "verify" and (at.accepted or 0) >= 2 and x.shape[2] == 4
        return turned(at, clean, x, cos, sin, at.positions - 1) if early else clean(x, cos, sin)

    alter(pipeline, ROTATE, change)
