"""Faults of the drafter's attention and rope."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, scaled
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.kernels import attention
from parity.device.pipeline import Pipeline

fault = Part("drafter attention and rope", 26)
FIRST = "drafter.layers.0.attn_out"


@fault(
    "value-columns-beyond-hidden-size-not-loaded",
    "the value weights of layers 1 to 3 are loaded up to column 96, the hidden size, the rest stays zero",
    "drafter.layers.1.attn_out",
    "prefill",
    "values of kv head 3 in layers 1 to 3",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "v", scaled(slice(96, None), 0.0), [1, 2, 3])


@fault(
    "drafter-softmax-in-base-two-without-log2-of-e",
    "the drafter's softmax takes powers of two of scores that are not multiplied by log2(e)",
    FIRST,
    "prefill",
    "base of the softmax in every drafter layer: scores too small by ln 2",
)
def _(pipeline: Pipeline) -> None:
    def base_two(scores, sink=None):
        parts = np.exp2(scores - np.max(scores, axis=-1, keepdims=True))
        return parts / np.sum(parts, axis=-1, keepdims=True)

    def change(at, clean, q, keys, values, seen):
        clean_softmax, attention.softmax = attention.softmax, base_two
        try:
            return clean(q, keys, values, seen)
        finally:
            attention.softmax = clean_softmax

    alter(pipeline, "kernels.drafter_layer:attend", change)


@fault(
    "llama3-ramp-of-the-drafter-runs-backwards",
    "in the middle band of llama3's scaling plain and divided frequencies have each other's share",
    FIRST,
    "prefill",
    "the drafter's rope frequencies 2 and 3",
)
def _(pipeline: Pipeline) -> None:
    drafter = pipeline.drafter
    rope, dim = drafter.rope, drafter.config.attention.head_dim
    plain = rope.theta ** (-np.arange(0, dim, 2) / dim)
    smooth = np.clip((rope.original * plain / (2 * np.pi) - rope.slow) / (rope.fast - rope.slow), 0, 1)
    share = np.where((smooth > 0) & (smooth < 1), 1 - smooth, smooth)
    angles = np.arange(drafter.positions)[:, None] * (plain * share + plain / rope.factor * (1 - share))
    drafter.tables = tuple(drafter.engine.array(wave(angles).astype(np.float32)) for wave in (np.cos, np.sin))


@fault(
    "split-key-halves-joined-with-equal-weight",
    "keys are split at 128, and the two results are averaged, not weighed by their sums",
    FIRST,
    "prefill",
    "the combination of two splits of keys in every drafter layer",
    "rows at positions from 128 on, which see keys of both splits",
    "position >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        whole, key = clean(q, keys, values, seen), np.arange(seen.shape[-1])
        if len(key) <= 128:
            return whole
        parts = [at.host(clean(q, keys, values, seen & half)) for half in (key < 128, key >= 128)]
        far = at.positions >= 128

        def averaged(value):
            return np.where(far[None, :, None], (parts[0] + parts[1]) / 2, value)

        return at.changed(whole, averaged)

    alter(pipeline, "kernels.drafter_layer:attend", change)


@fault(
    "masked-queries-share-one-rotation",
    "the queries of all masked rows are rotated by the first masked row's position, their keys are right",
    FIRST,
    "draft",
    "query rotation of masked rows in every drafter layer",
    "masked rows behind the first one of a draft pass",
)
def _(pipeline: Pipeline) -> None:
    heads = pipeline.drafter.config.attention.heads

    def change(at, clean, x, cos, sin):
        if at.masked > 1 and x.shape[2] == heads:
            masked = slice(at.committed + 1, at.committed + at.masked)

            def shared(wave):
                wave[:, masked] = wave[:, at.committed : at.committed + 1]
                return wave

            cos, sin = at.changed(cos, shared), at.changed(sin, shared)
        return clean(x, cos, sin)

    alter(pipeline, "kernels.drafter_layer:rotate", change)
