"""Faults of the target's rotary embedding, windows and output projection."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.kernels.rope import yarn_bounds
from parity.device.pipeline import Pipeline

fault = Part("target rotary embedding and masks", 22)
ATTEND, OUT = "kernels.target_layer:attend", "target.layers.{}.attn_out"


def last_seen(seen):
    """The key at each row's own position: int [1, W, 1] for a mask [1, W, P]."""
    return seen.shape[-1] - 1 - np.argmax(seen[..., ::-1], axis=-1)[..., None]


@fault(
    "yarn-ramp-whole-head",
    "YaRN's ramp bounds are counted in elements of the head, not in its pairs",
    "target.layers.0.q",
    "prefill",
    "bounds of the YaRN ramp, twice too large",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target
    rope, dim = target.rope, target.config.attention.head_dim
    plain = rope.theta ** (-np.arange(0, dim, 2) / dim)
    low, high = (2 * bound for bound in yarn_bounds(rope, dim // 2))
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    angles = np.arange(target.positions)[:, None] * (plain * (1 - ramp) + plain / rope.factor * ramp)
    cos, sin = ((wave(angles) * rope.magnitude).astype(np.float32) for wave in (np.cos, np.sin))
    target.tables = target.engine.array(cos), target.engine.array(sin)


@fault(
    "keys-turned-as-first-row",
    "all keys of a verify pass are rotated by the position of its first row",
    "target.layers.0.k",
    "verify",
    "position that keys are rotated by, every layer",
    "rows behind the first of a verify pass",
    "pass = verify and row > 0",
)
def _(pipeline: Pipeline) -> None:
    heads = pipeline.target.config.attention.kv_heads

    def change(at, clean, x, cos, sin):
        if at.kind == "verify" and x.shape[2] == heads:
            first = np.zeros(x.shape[1], np.int32)
            cos, sin = cos[:, first], sin[:, first]
        return clean(x, cos, sin)

    alter(pipeline, "kernels.target_layer:rotate", change)


@fault(
    "window-of-whole-pages",
    "the sliding window begins at the edge of a page of 16 keys: rows see the rest of the page too",
    OUT.format(0),
    "prefill",
    "first key of the window in sliding (even) layers",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        window = pipeline.target.windows[at.layer]
        if window is not None:
            mask = at.host(seen)
            own, key = last_seen(mask), np.arange(mask.shape[-1])
            seen = at.array((key <= own) & (key >= (own - window + 1) // 16 * 16), seen)
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "ring-overwritten-by-own-pass",
    "sliding layers keep a ring of 32 rows: the later rows of a verify pass overwrite what its earlier rows still see",
    OUT.format(0),
    "verify",
    "oldest keys of the window in sliding (even) layers",
    "rows of a verify pass but for its last one, sliding (even) layers",
    "pass = verify and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        window = pipeline.target.windows[at.layer]
        if window is not None and at.kind == "verify":
            mask = at.host(seen)
            seen = at.array(mask & (np.arange(mask.shape[-1]) > last_seen(mask).max() - window), seen)
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "output-weight-head-minor",
    "the output projection of layer 4 has its inputs in the order (dim, head), not (head, dim)",
    OUT.format(4),
    "prefill",
    "order of the output projection's inputs in layer 4",
)
def _(pipeline: Pipeline) -> None:
    def turned(value):
        return value.reshape(8, 32, -1).swapaxes(0, 1).reshape(value.shape)

    edit(pipeline.target, "o", turned, [4])
