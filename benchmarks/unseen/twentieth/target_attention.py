"""Faults of the target's attention: scale, sinks, masks."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target attention", 20)
BLOCK, PAGE = 64, 16
"""Keys that one step of an online softmax takes, and keys of a page."""
HIDDEN = -1e29
"""Scores below are masked ones."""


@fault(
    "scale-of-padded-head",
    "scores are divided by the square root of 64, to which the kernel pads a head, not of 32",
    "target.layers.0.attn_out",
    "prefill",
    "softmax scale of the target",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        return clean(x, sink) if sink is None else clean(x * 0.5**0.5, sink)

    alter(pipeline, "kernels.attention:softmax", change)


@fault(
    "sinks-to-the-base-2",
    "the softmax works to the base 2, and its factor log2(e) multiplies the scores but not the sinks",
    "target.layers.0.attn_out",
    "prefill",
    "sinks of every head, as if times ln 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        return clean(q, keys, values, seen, at.engine.array(at.host(sinks) * np.float32(np.log(2)), np.float32))

    alter(pipeline, "kernels.target_layer:attend", change)


@fault(
    "sink-not-rescaled",
    "where a later block of 64 keys raises the running maximum, the sink's part of the sum is not rescaled",
    "target.layers.0.attn_out",
    "prefill",
    "sink's part of the softmax's sum",
    "rows of which a block of 64 keys behind the first one seen holds a head's largest score",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        if sink is None:
            return clean(x)
        scores, logit = at.host(x), at.host(sink)
        blocks = np.split(scores, range(BLOCK, scores.shape[-1], BLOCK), axis=-1)
        tops = np.stack([block.max(axis=-1) for block in blocks], axis=-1)
        begun = np.take_along_axis(tops, np.argmax(tops > HIDDEN, axis=-1)[..., None], axis=-1)
        top = np.maximum(scores.max(axis=-1, keepdims=True), logit)
        parts = np.exp(scores - top)
        return at.array(parts / (parts.sum(axis=-1, keepdims=True) + np.exp(logit - np.maximum(begun, logit))), x)

    alter(pipeline, "kernels.attention:softmax", change)


@fault(
    "first-page-of-last-row",
    "sliding layers read from the page on in which the last verify row's window begins, earlier rows too",
    "target.layers.0.attn_out",
    "verify",
    "oldest keys of the window of verify rows",
    "verify rows of sliding layers whose window begins in a page of 16 before that of their pass' last row",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        window = pipeline.target.windows[at.layer]
        if at.kind == "verify" and window is not None:
            begin = max(int(at.positions.max()) - window + 1, 0) // PAGE * PAGE
            mask = at.host(seen)
            mask[..., :begin] = False
            seen = at.engine.array(mask)
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, "kernels.target_layer:attend", change)


@fault(
    "packed-heads-masked-by-pairs",
    "verify packs a group's heads into rows, head by head, and takes each row's mask as if heads of a row lay together",
    "target.layers.0.attn_out",
    "verify",
    "mask of each head of a group: that of another verify row",
    "verify rows",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        if at.kind != "verify":
            return clean(q, keys, values, seen, sinks)
        rows, groups, each = q.shape[1], keys.shape[2], q.shape[2] // keys.shape[2]
        mask, made = at.host(seen), []
        for place in range(each):
            mine = at.engine.array(mask[:, (place * rows + np.arange(rows)) // each])
            one = clean(q[:, :, place::each], keys, values, mine, sinks[place::each])
            made.append(at.host(one).reshape(1, rows, groups, 1, -1))
        return at.array(np.concatenate(made, axis=3).reshape(1, rows, -1), q)

    alter(pipeline, "kernels.target_layer:attend", change)
