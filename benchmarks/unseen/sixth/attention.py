"""Sixth set: faults of the target's attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, replaced, scaled
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.kernels.rope import yarn_bounds
from parity.device.pipeline import Pipeline

fault = Part("attention", 6)


@fault(
    "one-value-head-loud",
    "the columns of layer 4's v weight that make kv head 2 are dequantised with a scale that is 3 % too large",
    "target.layers.4.v",
    "prefill",
    "v projection of layer 4, kv head 2: its weight times 1.03, its bias as it is",
)
def _(pipeline: Pipeline) -> None:
    dim = pipeline.target.config.attention.head_dim
    rewritten(pipeline, pipeline.target.layers[4], "v", scaled(slice(2 * dim, 3 * dim), 1.03))


# After https://github.com/paiml/aprender/pull/2161
@fault(
    "yarn-extrapolates-from-ntk",
    "YaRN's unscaled frequencies are those of the base that NTK scaling makes of theta",
    "target.layers.0.q",
    "prefill",
    "the target's RoPE: the extrapolated part of YaRN's blend uses theta * factor ** (D / (D - 2))",
)
def _(pipeline: Pipeline) -> None:
    rope, dim = pipeline.target.rope, pipeline.target.config.attention.head_dim
    powers = -np.arange(0, dim, 2) / dim
    low, high = yarn_bounds(rope, len(powers))
    ramp = np.clip((np.arange(len(powers)) - low) / (high - low), 0, 1)
    other = rope.theta * rope.factor ** (dim / (dim - 2))
    turns = other**powers * (1 - ramp) + rope.theta**powers / rope.factor * ramp
    angles = np.arange(pipeline.target.positions)[:, None] * turns
    waves = (wave(angles) * rope.magnitude for wave in (np.cos, np.sin))
    pipeline.target.tables = tuple(pipeline.engine.array(one.astype(np.float32)) for one in waves)


# After https://github.com/tile-ai/tilelang/issues/2381
@fault(
    "output-tail-dropped",
    "the output projection walks its 256 inputs in whole tiles of 48 and leaves the last 16 out",
    "target.layers.0.attn_out",
    "prefill",
    "o projection of every target layer: inputs 240 to 255, the second half of head 7, add nothing",
)
def _(pipeline: Pipeline) -> None:
    def cut(weight):
        weight[len(weight) // 48 * 48 :] = 0
        return weight

    for layer in pipeline.target.layers:
        rewritten(pipeline, layer, "o", cut)


# After https://github.com/vllm-project/vllm/pull/39297
@fault(
    "faint-tiles-skipped",
    "the softmax skips every tile of 16 keys whose best score is more than 3 below the best of the tiles before it",
    "target.layers.0.attn_out",
    "prefill",
    "softmax of the target's attention: keys of skipped tiles have no weight, in numerator and denominator",
)
def _(pipeline: Pipeline) -> None:
    def skip(scores):
        tiles = scores.reshape(*scores.shape[:-1], -1, 16)
        best = tiles.max(axis=-1)
        faint = best < np.maximum.accumulate(best, axis=-1) - 3.0
        return np.where(faint[..., None], np.float32(-1e30), tiles).reshape(scores.shape)

    def change(at, clean, x, sink=None):
        return clean(x if sink is None else at.changed(x, skip), sink)

    alter(pipeline, "kernels.attention:softmax", change)


# After https://github.com/vllm-project/vllm-metal/pull/550
@fault(
    "sink-in-every-split",
    "attention is split over keys by 64, and the reduction counts a head's sink once for each split",
    "target.layers.0.attn_out",
    "prefill",
    "the sinks' weight in the target's softmax: times the number of splits that hold keys up to the row's own",
    "rows at position 64 and behind",
    "position >= 64",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        if sink is None:
            return clean(x, sink)
        positions = np.where(at.positions == at.pipeline.target.trash, 0, at.positions)
        counts = np.log(1 + positions // 64).astype(np.float32)[:, None]
        return clean(x, at.engine.array(at.host(sink) + counts))

    alter(pipeline, "kernels.attention:softmax", change)


# After https://github.com/ml-explore/mlx-lm/pull/390 and https://github.com/karpathy/nanochat/issues/452
@fault(
    "one-window-a-pass",
    "sliding layers cut the keys of a verify pass once, at the window of its first row",
    "target.layers.0.attn_out",
    "verify",
    "lower end of the window in sliding layers: row r of a verify pass sees r keys more than it should",
    "verify passes, every row but the first",
    "pass = verify and row >= 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        step = clean(rows)
        if at.kind != "verify":
            return step
        keys, first = np.arange(step.span), int(rows.positions[0, 0])
        causal = keys <= rows.positions[..., None]
        cut = {window: at.engine.array(causal & (keys > first - window)) for window in step.seen if window}
        return replace(step, seen=step.seen | cut)

    replaced(pipeline, pipeline.target, "step", change)
