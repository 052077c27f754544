"""Eighth set: faults of the target's attention."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("attention", 8)


# After https://github.com/modular/modular/pull/6591
@fault(
    "sink-by-packed-row",
    "a softmax over rows of all heads, one head behind the other, finds a row's sink by its number modulo the heads",
    "target.layers.0.attn_out",
    "prefill",
    "sinks of the target's attention: head h of row r in a pass of n rows takes that of head (h n + r) mod 8",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        if sink is None:
            return clean(x, sink)
        groups, each, rows = x.shape[1:4]
        number = np.arange(groups * each * rows).reshape(1, groups, each, rows, 1)
        return clean(x, at.array(at.host(sink).reshape(-1)[number % (groups * each)], sink))

    alter(pipeline, "kernels.attention:softmax", change)


# After https://github.com/openai/gpt-oss/pull/196
@fault(
    "loop-begins-at-the-first-query",
    "the loop over keys of a layer without a window begins at the pass' first query, as if nothing were cached",
    "target.layers.1.attn_out",
    "verify",
    "the mask of full layers in verify passes: keys in front of the pass are not seen",
    "verify passes, odd layers",
    "pass = verify and layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        if at.kind == "verify" and pipeline.target.windows[at.layer] is None:
            seen = at.engine.array(at.host(seen) & (np.arange(seen.shape[-1]) >= at.positions[0]))
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, "kernels.target_layer:attend", change)


# After https://github.com/EricLBuehler/mistral.rs/issues/2094: a window that not all of a layer's heads are given.
@fault(
    "window-for-half-the-heads",
    "heads run in two blocks of four, and the second block is not told the window",
    "target.layers.0.attn_out",
    "prefill",
    "the window of sliding layers in heads 4 to 7: they see every key up to their own",
    "rows at positions from 32 on, even layers",
    "position >= 32 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    half = pipeline.target.config.attention.heads * pipeline.target.config.attention.head_dim // 2

    def change(at, clean, q, keys, values, seen, sinks):
        made = clean(q, keys, values, seen, sinks)
        if pipeline.target.windows[at.layer] is None:
            return made
        mask = at.host(seen)
        causal = np.flip(np.logical_or.accumulate(np.flip(mask, -1), axis=-1), -1)
        other = at.host(clean(q, keys, values, at.engine.array(np.ascontiguousarray(causal)), sinks))

        def exchange(mixed):
            mixed[..., half:] = other[..., half:]
            return mixed

        return at.changed(made, exchange)

    alter(pipeline, "kernels.target_layer:attend", change)
