"""Faults of the target's projections and of its rotary embedding."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import every
from parity.device.kernels.rope import yarn_bounds
from parity.device.pipeline import Pipeline

fault = Part("target projections and rope", 19)


def turned_by(pipeline, waves):
    """These tables of cos and sin in the place of the target's."""
    array = pipeline.engine.array
    pipeline.target.tables = tuple(array(wave.astype(np.float32)) for wave in waves)


@fault(
    "fused-biases-in-other-order",
    "the fused bias of q, k and v is cut as q, v, k, the fused weight as q, k, v",
    "target.layers.0.k",
    "prefill",
    "biases of k and v, exchanged in every layer",
)
def _(pipeline: Pipeline) -> None:
    for layer in every(pipeline.target):
        held = pipeline.target.layers[layer]
        held["k_bias"], held["v_bias"] = held["v_bias"], held["k_bias"]


@fault(
    "values-by-layer-before",
    "the buffer that weights are fetched into ahead is read too early: layer 6 projects values by layer 5's weights",
    "target.layers.6.v",
    "prefill",
    "weight and bias of v in layer 6",
)
def _(pipeline: Pipeline) -> None:
    layers = pipeline.target.layers
    layers[6] |= {name: layers[5][name] for name in ("v", "v_bias")}


@fault(
    "yarn-ramp-inverted",
    "YaRN's ramp is taken the other way round: high frequencies are divided by the factor, low ones stay",
    "target.layers.0.q",
    "prefill",
    "rotary frequencies of q and k in every layer",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target
    rope, dim = target.rope, target.config.attention.head_dim
    plain = rope.theta ** (-np.arange(0, dim, 2) / dim)
    low, high = yarn_bounds(rope, dim // 2)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    angles = np.arange(target.positions)[:, None] * (plain * ramp + plain / rope.factor * (1 - ramp))
    turned_by(pipeline, [wave(angles) * rope.magnitude for wave in (np.cos, np.sin)])


@fault(
    "last-row-of-rope-tile-stale",
    "tables of cos and sin are fetched in tiles of 32 positions less one: the last row is that of the tile before",
    "target.layers.0.q",
    "prefill",
    "rotation of q and k at the last position of each tile, 32 positions too early",
    "rows at the last position of a tile of 32, but for the first tile",
    "position % 32 = 31 and position > 31",
)
def _(pipeline: Pipeline) -> None:
    waves = [np.array(pipeline.engine.host(one), np.float32) for one in pipeline.target.tables]
    for wave in waves:
        wave[63::32] = wave[31:-32:32].copy()
    turned_by(pipeline, waves)


@fault(
    "bonus-key-one-early",
    "behind a round that accepted every draft the bonus token's key is rotated at the position before its own",
    "target.layers.0.k",
    "verify",
    "rotation of the first row's key in every layer",
    "first row of a verify pass behind a round that accepted all 4 drafts",
    "pass = verify and accepted = 4 and row = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        keys = x.shape[2] == pipeline.target.config.attention.kv_heads
        if not (keys and at.kind == "verify" and at.accepted == 4):
            return clean(x, cos, sin)
        before = max(int(at.positions[0]) - 1, 0)

        def early(table):
            def change(rows):
                rows[:, 0] = at.host(table)[before]
                return rows

            return change

        tables = pipeline.target.tables
        return clean(x, at.changed(cos, early(tables[0])), at.changed(sin, early(tables[1])))

    alter(pipeline, "kernels.target_layer:rotate", change)
