"""Faults of the target's attention: sinks, masks, scale, splits and the output projection."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target attention", 24)
OUT = "target.layers.0.attn_out"
SOFTMAX, ATTEND = "kernels.attention:softmax", "kernels.target_layer:attend"
SPLIT, PAGE = 64, 16
"""Keys of one split of a decoding kernel, and of one page."""


def on_sinks(pipeline, change):
    """`change(at, scores, sinks)` stands for the softmax of the target's attention, on the host."""

    def run(at, clean, x, sink=None):
        return clean(x) if sink is None else at.array(change(at, at.host(x), at.host(sink)), x)

    alter(pipeline, SOFTMAX, run)


def softmax(x, sink):
    """The right one."""
    top = np.maximum(x.max(-1, keepdims=True), sink)
    parts = np.exp(x - top)
    return parts / (parts.sum(-1, keepdims=True) + np.exp(sink - top))


@fault(
    "sink-joins-sum-before-max-shift",
    "the sink's exponential joins the denominator without the subtraction of the row's maximum",
    OUT,
    "prefill",
    "sinks in the denominator of the softmax",
)
def _(pipeline: Pipeline) -> None:
    def change(at, x, sink):
        parts = np.exp(x - np.maximum(x.max(-1, keepdims=True), sink))
        return parts / (parts.sum(-1, keepdims=True) + np.exp(sink))

    on_sinks(pipeline, change)


@fault(
    "yarn-mscale-squared-in-softmax-scale",
    "the softmax scale is multiplied by YaRN's concentration squared, which q and k have in them",
    OUT,
    "prefill",
    "softmax scale of every layer",
)
def _(pipeline: Pipeline) -> None:
    again = pipeline.target.rope.magnitude**2
    on_sinks(pipeline, lambda at, x, sink: softmax(np.where(x > -1e29, x * again, x), sink))


@fault(
    "packed-rows-advance-sink-of-group",
    "in a packed tile of a verify pass the counter of the group's sinks runs on by one more at each row",
    OUT,
    "verify",
    "sinks of the two heads of a group, exchanged",
    "odd rows of a verify pass",
    "pass = verify and row % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, x, sink):
        if at.kind == "verify":
            odd = np.arange(x.shape[3])[:, None] % 2 == 1
            sink = np.where(odd, sink[:, :, ::-1], sink)
        return softmax(x, sink)

    on_sinks(pipeline, change)


@fault(
    "split-merge-base-two-of-natural-lse",
    "full layers of a verify pass merge splits of 64 keys by powers of two of natural log-sum-exps",
    "target.layers.1.attn_out",
    "verify",
    "weights of the splits of keys in full layers",
    "verify rows at positions from 64 on, layers with full attention",
    "pass = verify and position >= 64 and layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, x, sink):
        right = softmax(x, sink)
        if at.kind != "verify" or pipeline.target.windows[at.layer] is not None:
            return right
        top = np.maximum(x.max(-1, keepdims=True), sink)
        sums = [np.exp(x[..., s : s + SPLIT] - top).sum(-1, keepdims=True) for s in range(0, x.shape[-1], SPLIT)]
        sums[0] = sums[0] + np.exp(sink - top)
        natural = np.stack(sums)
        merged = natural ** np.log(2)
        factor = merged / merged.sum(0) * natural.sum(0) / np.maximum(natural, 1e-30)
        each = [right[..., n * SPLIT : (n + 1) * SPLIT] * one for n, one in enumerate(factor)]
        return np.concatenate(each, -1)

    on_sinks(pipeline, change)


@fault(
    "verify-window-begins-at-whole-page",
    "sliding layers of a verify pass begin the window at the start of its first page of 16 keys",
    OUT,
    "verify",
    "lower end of the sliding window",
    "verify rows whose window begins within a page, sliding layers",
    "pass = verify and position % 16 != 15 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        window = pipeline.target.windows[at.layer]
        if at.kind != "verify" or window is None:
            return clean(q, keys, values, seen, sinks)
        last, key = at.positions[:, None], np.arange(keys.shape[1])
        wide = (key <= last) & (key >= (last - window + 1) // PAGE * PAGE)
        return clean(q, keys, values, at.engine.array(wide[None]), sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "last-value-head-read-at-short-stride",
    "the value rows of kv head 3 are read where those of head 2 lie",
    OUT,
    "prefill",
    "kv head 3 of the values that attention reads",
)
def _(pipeline: Pipeline) -> None:
    alter(pipeline, ATTEND, lambda at, clean, q, keys, values, *rest: clean(q, keys, values[:, :, [0, 1, 2, 2]], *rest))


@fault(
    "output-bias-added-by-both-ranks",
    "each of two ranks adds the output projection's bias before their sums are reduced",
    OUT,
    "prefill",
    "bias of the output projection, twice",
)
def _(pipeline: Pipeline) -> None:
    alter(
        pipeline, "kernels.target_layer:row_parallel", lambda at, clean, x, weight, bias: clean(x, weight, bias * 2.0)
    )
