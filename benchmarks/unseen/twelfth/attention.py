"""Twelfth set: faults of the target's attention."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("attention", 12)
ATTEND, SOFTMAX = "kernels.target_layer:attend", "kernels.attention:softmax"


# From the equations: two kernels that each scale, the second one in a path of its own.
@fault(
    "scaled-on-both-sides",
    "the kernel of verify passes is handed queries that are scaled already, and scales its scores",
    "target.layers.0.attn_out",
    "verify",
    "the score scale of every target layer: the square root of 32 too small; sinks are right",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, *given):
        if at.kind == "verify":
            q = at.changed(q, lambda rows: rows * np.float32(q.shape[-1] ** -0.5))
        return clean(q, *given)

    alter(pipeline, ATTEND, change)


# Of the class of https://github.com/ROCm/rocm-libraries/issues/12227: the sink as a running softmax's first state.
@fault(
    "first-state-not-rescaled",
    "a running softmax begins with the sink as its largest score and a sum of 1, and does not rescale that 1",
    "target.layers.0.attn_out",
    "prefill",
    "the sinks' weight in every target layer's softmax: exp(0) beside exponentials of scores less the row's largest, "
    "where exp(sink - largest) is meant; it shows where a row's largest score is above its sink",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        if sink is None:
            return clean(x)
        scores, sinks = at.host(x), at.host(sink)
        parts = np.exp(scores - np.maximum(scores.max(axis=-1, keepdims=True), sinks))
        return at.array(parts / (parts.sum(axis=-1, keepdims=True) + 1), x)

    alter(pipeline, SOFTMAX, change)


# Of FlashAttention's windows, whose ends count from the lengths of queries and keys: with padding in the latter.
@fault(
    "window-behind-the-padding",
    "a prompt's padding counts among its keys, and windows begin as many keys later",
    "target.layers.0.attn_out",
    "prefill",
    "the lower end of sliding layers' windows in prefills: later by the padding, 30, so that a row sees two keys",
    "prefill rows at positions from 2 on, even layers",
    "pass = prefill and position >= 2 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        window = pipeline.target.windows[at.layer]
        if at.kind == "prefill" and window is not None:
            real = at.positions < pipeline.target.trash
            first = np.where(real, at.positions - window + 1 + int((~real).sum()), 0)
            seen = at.engine.array(at.host(seen) & (np.arange(seen.shape[-1]) >= first[:, None]))
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, ATTEND, change)


# From the equations: keys that are handed over beside a cache which has them.
@fault(
    "own-keys-counted-twice",
    "a verify pass attends over the cache and over its own keys beside it, which the cache has by then",
    "target.layers.0.attn_out",
    "verify",
    "softmax weights of every target layer: those of keys of the pass' own rows count twice",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        if sink is None or at.kind != "verify":
            return clean(x, sink)

        def double(scores):
            scores[..., at.positions] += np.log(np.float32(2))
            return scores

        return clean(at.changed(x, double), sink)

    alter(pipeline, SOFTMAX, change)


# From the equations: one vector of three biases, in another order than the matrix of three projections.
@fault(
    "biases-in-another-order",
    "the fused projection's bias is put together from those of q, v and k, its matrix from q, k and v",
    "target.layers.0.k",
    "prefill",
    "biases of keys and values in every target layer: each other's",
)
def _(pipeline: Pipeline) -> None:
    for layer in pipeline.target.layers:
        layer["k_bias"], layer["v_bias"] = layer["v_bias"], layer["k_bias"]
