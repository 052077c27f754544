"""Thirteenth set: faults of the target's attention."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("attention", 13)
ATTEND, SOFTMAX = "kernels.target_layer:attend", "kernels.attention:softmax"


# After https://github.com/vllm-project/tpu-inference/pull/1954: accumulators that are cleared in block 0 alone.
@fault(
    "accumulators-of-the-head-before",
    "a kv head's two query heads run one after the other, and accumulators are cleared in block 0 of 16 keys, which a "
    "window may have left behind",
    "target.layers.0.attn_out",
    "prefill",
    "softmax of heads 1, 3, 5 and 7 in sliding layers: exponentials of the head before, its sink among them, count in "
    "numerator and denominator beside their own",
    "rows at positions from 47 on, even layers",
    "position >= 47 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        made = clean(x, sink)
        if sink is None or pipeline.target.windows[at.layer] is None:
            return made
        scores, sinks = at.host(x), at.host(sink)
        top = np.maximum(scores.max(axis=-1, keepdims=True), sinks).max(axis=2, keepdims=True)
        parts, taken = (np.exp(one - top).sum(axis=2) for one in (scores, sinks))
        late = (at.positions >= 47) & (at.positions < pipeline.target.trash)

        def go_on(weights):
            both = parts / (parts.sum(axis=-1, keepdims=True) + taken)
            weights[:, :, 1, late] = both[:, :, late]
            return weights

        return at.changed(made, go_on)

    alter(pipeline, SOFTMAX, change)


# From the equations: heads that are repeated as a whole, where each is to be repeated.
@fault(
    "values-repeated-whole",
    "keys are repeated head by head for the query heads, values as a whole",
    "target.layers.0.attn_out",
    "prefill",
    "kv head of the values of query head h in every target layer: h modulo 4, where h div 2 is meant; keys are right",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, *rest):
        groups = np.arange(values.shape[2])
        made = [
            at.host(clean(q, keys, at.changed(values, lambda rows, m=member: rows[:, :, (2 * groups + m) % 4]), *rest))
            for member in (0, 1)
        ]
        heads = [one.reshape(*one.shape[:2], len(groups), 2, -1)[:, :, :, m] for m, one in enumerate(made)]
        return at.array(np.stack(heads, axis=3).reshape(made[0].shape), q)

    alter(pipeline, ATTEND, change)


# Of the class of https://github.com/vllm-project/vllm/pull/38311: a replayed graph's metadata from the run before.
@fault(
    "mask-of-the-round-before",
    "a replayed verify pass finds the mask of the round before, as it is filled behind the launch",
    "target.layers.0.attn_out",
    "verify",
    "the mask of every target layer in verify passes: that of the round before; rows do not see what came since",
    "verify passes from round 2 on",
    "pass = verify and round >= 2",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, q, keys, values, seen, sinks):
        if at.kind == "verify":
            held[at.prompt, at.round] = at.positions.copy()
            before = held.get((at.prompt, at.round - 1), at.positions)
            distance = before[:, None] - np.arange(seen.shape[-1])
            mask = (distance >= 0) & (distance < (pipeline.target.windows[at.layer] or pipeline.target.trash))
            seen = at.engine.array(mask[None])
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, ATTEND, change)


# Of the class of https://github.com/vllm-project/vllm/issues/51756: which layer has a window is asked of another list.
@fault(
    "windows-by-the-local-number",
    "a second pipeline stage begins with layer 3, and asks for windows by the number of a layer in its stage",
    "target.layers.3.attn_out",
    "prefill",
    "windows of layers 3 to 7: odd layers have one of 32, even layers none",
    "rows at positions from 32 on, layers from 3 on",
    "position >= 32 and layer >= 3",
)
def _(pipeline: Pipeline) -> None:
    windows = pipeline.target.windows
    pipeline.target.windows = windows[:3] + windows[: len(windows) - 3]


# From the equations: heads that end behind a product's start.
@fault(
    "last-heads-of-the-layer-before",
    "in verify passes the output projection starts when heads 0 to 5 are done, and finds what heads 6 and 7 left in "
    "the layer before",
    "target.layers.1.attn_out",
    "verify",
    "input of the output projection, heads 6 and 7: theirs of the layer before",
    "verify passes, layers from 1 on",
    "pass = verify and layer >= 1",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, x, weight, bias):
        if at.kind != "verify":
            return clean(x, weight, bias)
        mine = at.host(x)
        late = held.get("heads", mine) if at.layer else mine
        held["heads"] = mine.copy()
        first = mine.shape[-1] // 4 * 3
        mixed = np.concatenate([mine[..., :first], late[..., first:]], axis=-1)
        return clean(at.array(mixed, x), weight, bias)

    alter(pipeline, "kernels.target_layer:row_parallel", change)
