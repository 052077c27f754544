"""Seventh set: faults of the target's attention."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.kernels.attention import visible
from parity.device.pipeline import Pipeline

fault = Part("attention", 7)
POWERS = (1.0, 0.695146143436431884765625, 0.227564394474029541015625, 0.077119089663028717041015625)
"""Of FlashAttention 4's polynomial for 2 ** x between 0 and 1."""


# After https://github.com/pegainfer-project/pegainfer/issues/291
@fault(
    "page-in-reserve-attended",
    "a pass that fills its last page of 16 keys has the next page in its table already, and counts 16 keys more",
    "target.layers.0.attn_out",
    "verify",
    "the mask of every target layer: all rows of the pass see as if they were 16 positions further on",
    "verify passes whose last row is the last one of a page of 16",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        step = clean(rows)
        if at.kind != "verify" or (int(rows.positions.max()) + 1) % 16:
            return step
        later = {window: at.engine.array(visible(rows.positions + 16, step.span, window)) for window in step.seen}
        return replace(step, seen=later)

    replaced(pipeline, pipeline.target, "step", change)


# After https://github.com/vllm-project/vllm-metal/issues/665, the other way round: a cap where none belongs.
@fault(
    "scores-softly-capped",
    "attention scores are capped by 30 tanh(x / 30), a setting of another family of models",
    "target.layers.0.attn_out",
    "prefill",
    "scores of the target's attention, sinks as they are",
)
def _(pipeline: Pipeline) -> None:
    def cap(scores):
        return np.where(scores < -1e29, scores, 30 * np.tanh(scores / np.float32(30)))

    def change(at, clean, x, sink=None):
        return clean(x if sink is None else at.changed(x, cap), sink)

    alter(pipeline, "kernels.attention:softmax", change)


# After https://github.com/Dao-AILab/flash-attention/issues/2263
@fault(
    "exponential-by-a-cubic",
    "the softmax raises 2 to the fractional part of its scores by a polynomial of the third degree",
    "target.layers.0.attn_out",
    "prefill",
    "the exponential of the target's softmax: up to 9e-5 of itself too small or too large",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def power(x):
        x = np.maximum(x, np.float32(-127))
        whole = np.floor(x)
        return np.ldexp(np.polynomial.polynomial.polyval(x - whole, POWERS).astype(np.float32), whole.astype(np.int32))

    def change(at, clean, x, sink=None):
        if sink is None:
            return clean(x, sink)
        scores, last = at.host(x), at.host(sink)
        top = np.maximum(scores.max(axis=-1, keepdims=True), last)
        parts = power((scores - top) * np.float32(math.log2(math.e)))
        total = parts.sum(axis=-1, keepdims=True) + np.exp(last - top)
        return at.engine.array((parts / total).astype(np.float32))

    alter(pipeline, "kernels.attention:softmax", change)


# After https://github.com/mit-han-lab/llm-awq/pull/314: a factor that weight and bias do not share
@fault(
    "scale-folded-without-the-bias",
    "the scores' scale is folded into the query weights, and the query bias goes without it",
    "target.layers.0.q",
    "prefill",
    "query bias of every target layer: the square root of 32 times too large beside the weights",
)
def _(pipeline: Pipeline) -> None:
    root = np.float32(pipeline.target.config.attention.head_dim**0.5)
    for layer in pipeline.target.layers:
        rewritten(pipeline, layer, "q_bias", lambda bias: bias * root)
