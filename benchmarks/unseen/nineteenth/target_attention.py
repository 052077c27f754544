"""Faults of the target's attention, from the scores to the output projection."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target attention", 19)
ATTEND = "kernels.target_layer:attend"
TILE = 64
"""Keys that a flash kernel takes at a time."""


def weighing(pipeline, change):
    """`change(moment, clean, x, sink)` stands for the softmax of the target's attention alone."""
    within = []

    def attend(at, clean, *given):
        within.append(at.layer)
        try:
            return clean(*given)
        finally:
            within.pop()

    alter(pipeline, ATTEND, attend)
    alter(
        pipeline,
        "kernels.attention:softmax",
        lambda at, clean, x, sink=None: change(at, clean, x, sink) if within else clean(x, sink),
    )


@fault(
    "sink-not-shifted",
    "the sink joins the softmax's sum as exp(sink), the scores as exp(score - largest score)",
    "target.layers.0.attn_out",
    "prefill",
    "sink's part of the softmax's sum in every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink):
        def joined(weights):
            return weights / (1 + np.exp(at.host(sink)) * weights.max(axis=-1, keepdims=True))

        return at.changed(clean(x, None), joined)

    weighing(pipeline, change)


@fault(
    "target-scale-by-derived-head-dim",
    "scores are divided by sqrt(hidden / heads), 12, where the config names a head dim of 32",
    "target.layers.0.attn_out",
    "prefill",
    "softmax scale in every layer",
)
def _(pipeline: Pipeline) -> None:
    config = pipeline.target.config

    def change(at, clean, q, *rest):
        wanted = config.hidden / config.attention.heads
        return clean(q * float((q.shape[-1] / wanted) ** 0.5), *rest)

    alter(pipeline, ATTEND, change)


@fault(
    "heads-flattened-behind-dims",
    "heads and dims of what attention mixed are flattened in the kernel's own order, dims first",
    "target.layers.0.attn_out",
    "prefill",
    "inputs of the output projection in every layer",
)
def _(pipeline: Pipeline) -> None:
    dim = pipeline.target.config.attention.head_dim

    def change(at, clean, mixed, *rest):
        split = mixed.reshape(*mixed.shape[:2], -1, dim).transpose(0, 1, 3, 2)
        return clean(split.reshape(*mixed.shape), *rest)

    alter(pipeline, "kernels.target_layer:row_parallel", change)


@fault(
    "window-of-last-verify-row",
    "a verify pass skips keys in front of the window of its last row, for all its rows",
    "target.layers.0.attn_out",
    "verify",
    "lower bound of the window in sliding layers",
    "rows of a verify pass but the last one, sliding layers",
    "pass = verify and layer % 2 = 0 and row < 4",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target

    def change(at, clean, q, keys, values, seen, sinks):
        window = target.windows[at.layer]
        if at.kind == "verify" and window is not None:
            last = at.positions[at.positions < target.trash].max()

            def skipped(mask):
                mask[:, :, : max(last - window + 1, 0)] = False
                return mask

            seen = at.changed(seen, skipped)
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "sum-not-rescaled",
    "flash attention over tiles of 64 keys does not rescale the values' sum where a later tile has a larger score",
    "target.layers.1.attn_out",
    "prefill",
    "weights of the tiles before the one with the largest score, too large",
    "rows of full layers whose largest score is not in the first tile of 64 keys, head by head",
)
def _(pipeline: Pipeline) -> None:
    windows = pipeline.target.windows

    def change(at, clean, x, sink):
        if windows[at.layer] is not None:
            return clean(x, sink)
        scores = at.host(x)
        tiles = [scores[..., first : first + TILE].max(axis=-1) for first in range(0, scores.shape[-1], TILE)]
        running = np.maximum.accumulate(np.stack(tiles, axis=-1), axis=-1)
        factor = np.exp(running[..., -1:] - running).repeat(TILE, axis=-1)[..., : scores.shape[-1]]
        return at.changed(clean(x, sink), lambda weights: weights * factor)

    weighing(pipeline, change)
