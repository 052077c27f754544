"""Faults of the target's attention kernels."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target attention", 26)
ATTEND = "kernels.target_layer:attend"


def scored(at, q, keys, seen):
    """Scores [N, S, P] in float32, minus infinity where nothing is seen."""
    rows, held = at.host(q)[0], at.host(keys)[0]
    held = np.repeat(held, rows.shape[1] // held.shape[1], axis=1)
    scores = np.einsum("snd,pnd->nsp", rows, held) * rows.shape[-1] ** -0.5
    return np.where(at.host(seen)[0], scores, -np.inf)


def mixed(at, weights, values, q):
    """What weights [N, S, P] make of the values, as attention gives it."""
    held = np.repeat(at.host(values)[0], q.shape[2] // values.shape[2], axis=1)
    made = np.einsum("nsp,pnd->snd", weights, held)
    return at.array(made.reshape(1, len(made), -1).astype(np.float32), q)


@fault(
    "sink-column-cut-at-wrong-end",
    "the sink's column stands behind the keys' and the first one is cut off: each weight acts on the key before",
    "target.layers.0.attn_out",
    "prefill",
    "weights of every key, one key early, in every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        scores, sink = scored(at, q, keys, seen), at.host(sinks)[:, None, None]
        top = np.maximum(scores.max(axis=-1, keepdims=True), sink)
        parts = np.exp(scores - top)
        weights = parts / (parts.sum(axis=-1, keepdims=True) + np.exp(sink - top))
        return mixed(at, np.concatenate([weights[..., 1:], 0 * weights[..., :1]], axis=-1), values, q)

    alter(pipeline, ATTEND, change)


@fault(
    "softmax-scale-of-derived-head-size",
    "scores are divided by the root of hidden size over heads, 12, where the head size is 32",
    "target.layers.0.attn_out",
    "prefill",
    "scale of the scores in every layer",
)
def _(pipeline: Pipeline) -> None:
    config = pipeline.target.config
    factor = np.sqrt(config.attention.head_dim / (config.hidden // config.attention.heads))

    def change(at, clean, q, *rest):
        return clean(at.changed(q, lambda value: value * factor), *rest)

    alter(pipeline, ATTEND, change)


@fault(
    "accumulator-not-rescaled-by-new-maximum",
    "the softmax over blocks of 64 keys rescales its sum where a later block has a new maximum, and not its values",
    "target.layers.0.attn_out",
    "prefill",
    "values of blocks in front of the one with the largest score",
    "rows whose largest score, the sink's too, lies behind their first block of 64 keys",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        scores, sink = scored(at, q, keys, seen), at.host(sinks)[:, None, None]
        if scores.shape[-1] <= 64:
            return clean(q, keys, values, seen, sinks)
        blocks = [scores[..., first : first + 64] for first in range(0, scores.shape[-1], 64)]
        top, parts, total = sink, [], 1.0
        for block in blocks:
            higher = np.maximum(top, block.max(axis=-1, keepdims=True))
            parts.append(np.exp(block - higher))
            total = total * np.exp(top - higher) + parts[-1].sum(axis=-1, keepdims=True)
            top = higher
        return mixed(at, np.concatenate(parts, axis=-1) / total, values, q)

    alter(pipeline, ATTEND, change)


@fault(
    "windowed-verify-skips-partial-first-page",
    "in verify passes a windowed layer begins at the first whole page of 16 keys of its window",
    "target.layers.0.attn_out",
    "verify",
    "oldest keys of the window in even layers",
    "verify rows whose window does not begin with a page, even layers",
    "pass = verify and layer % 2 = 0 and position % 16 != 15",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        def whole(value):
            begin = -(-(at.positions - 31) // 16) * 16
            return value & (np.arange(value.shape[-1]) >= begin[:, None])

        mine = at.kind == "verify" and at.layer % 2 == 0
        return clean(q, keys, values, at.changed(seen, whole) if mine else seen, sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "diagonal-tile-skipped-at-tile-start",
    "the loop over tiles of 32 keys ends at position / 32 rounded up: the first row of a tile does not see its own key",
    "target.layers.0.attn_out",
    "prefill",
    "own key of the first row of each tile, in every layer",
    "positions that are multiples of 32",
    "position % 32 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        def short(value):
            rows = np.flatnonzero((at.positions % 32 == 0) & (at.positions < value.shape[-1]))
            value[:, rows, at.positions[rows]] = False
            return value

        return clean(q, keys, values, at.changed(seen, short), sinks)

    alter(pipeline, ATTEND, change)
