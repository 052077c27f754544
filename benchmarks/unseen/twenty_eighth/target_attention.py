"""The target's attention: heads, sinks, windows and the splits of long ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("attention of the target", 28)
TILE = 64


@fault(
    "sinks-regrouped",
    "the sinks are laid out by the place of a head in its group first, and read group by group",
    "target.layers.0.attn_out",
    "prefill",
    "the sink of each head, another head's",
)
def _(pipeline: Pipeline) -> None:
    groups = pipeline.target.config.attention.kv_heads
    edit(pipeline.target, "sinks", lambda sinks: sinks.reshape(groups, -1).T.reshape(-1), every(pipeline.target))


@fault(
    "heads-to-groups-by-remainder",
    "a query head takes the kv head of its number modulo the groups instead of its number over the group size",
    "target.layers.0.attn_out",
    "prefill",
    "which kv head each query head attends with",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, q: Any, keys: Any, values: Any, seen: Any, sinks: Any) -> Any:
        heads = q.shape[2]
        order = np.arange(heads).reshape(-1, keys.shape[2]).T.reshape(-1)
        made = clean(np.take(q, order, axis=2), keys, values, seen, np.take(sinks, order, axis=0))
        return np.take(made.reshape(*q.shape), np.argsort(order), axis=2).reshape(*made.shape)

    alter(pipeline, "kernels.target_layer:attend", change)


@fault(
    "verify-window-of-last-draft",
    "in a verify pass the sliding window begins where that of the last row begins, for all rows",
    "target.layers.0.attn_out",
    "verify",
    "the beginning of the sliding window",
    "rows of a verify pass before its last, in windowed layers",
    "pass = verify and layer % 2 = 0 and row < 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, q: Any, keys: Any, values: Any, seen: Any, sinks: Any) -> Any:
        if at.kind == "verify" and pipeline.target.windows[at.layer] is not None:
            held = at.host(seen)
            first = int(np.argmax(held[0, -1]))
            seen = at.array(held & (np.arange(held.shape[-1]) >= first), seen)
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, "kernels.target_layer:attend", change)


@fault(
    "sink-twice-with-an-empty-split",
    "split attention adds the sink once more where the window leaves the first split of 64 keys empty",
    "target.layers.0.attn_out",
    "prefill",
    "the sink, counted twice in the sum of the softmax",
    "rows of windowed layers that see none of the first 64 keys",
    "layer % 2 = 0 and position >= 95",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, q: Any, keys: Any, values: Any, seen: Any, sinks: Any) -> Any:
        made = clean(q, keys, values, seen, sinks)
        if pipeline.target.windows[at.layer] is None:
            return made
        twice = clean(q, keys, values, seen, at.changed(sinks, lambda value: value + np.log(2)))
        empty = ~at.host(seen)[:, :, :TILE].any(axis=-1)
        return np.where(at.array(empty[..., None], seen), twice, made)

    alter(pipeline, "kernels.target_layer:attend", change)


@fault(
    "attention-running-sum-not-rescaled",
    "the running sum of the tiled softmax is not rescaled when a later tile of 64 keys has a larger score",
    "target.layers.1.attn_out",
    "prefill",
    "the sum under the softmax of the full layers",
    "rows of full layers whose largest score is not in their first tile of 64 keys",
    "layer % 2 = 1 and position >= 64",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, x: Any, sink: Any = None) -> Any:
        if sink is None or pipeline.target.windows[at.layer] is not None:
            return clean(x, sink)

        def weights(scores: np.ndarray) -> np.ndarray:
            edges = np.arange(0, scores.shape[-1], TILE)
            running = np.maximum.accumulate(np.maximum.reduceat(scores, edges, axis=-1), axis=-1)
            top = running[..., -1:]
            tops = np.repeat(running, TILE, axis=-1)[..., : scores.shape[-1]]
            total = np.sum(np.exp(scores - tops), axis=-1, keepdims=True) + np.exp(at.host(sink) - top)
            return np.exp(scores - top) / total

        return at.changed(x, weights)

    alter(pipeline, "kernels.attention:softmax", change)


@fault(
    "long-verify-loses-a-partial",
    "once 128 rows are cached, the reduction over splits in verify loses the first split of 128 keys for the last head",
    "target.layers.1.attn_out",
    "verify",
    "the keys that head 7 of the full layers attends to",
    "verify passes over 128 cached rows or more, in full layers",
    "pass = verify and cached >= 128 and layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, q: Any, keys: Any, values: Any, seen: Any, sinks: Any) -> Any:
        made = clean(q, keys, values, seen, sinks)
        if at.kind != "verify" or at.positions[0] < 128 or pipeline.target.windows[at.layer] is not None:
            return made
        later = at.host(seen) & (np.arange(seen.shape[-1]) >= 128)
        lost, last = clean(q, keys, values, at.array(later, seen), sinks), np.arange(made.shape[-1]) >= 7 * q.shape[-1]
        return np.where(at.array(last[None, None], seen), lost, made)

    alter(pipeline, "kernels.target_layer:attend", change)
