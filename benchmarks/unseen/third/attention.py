"""Third set: faults of the target's rotation, and of how its heads are packed and mixed."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.kernels.rope import frequencies
from parity.device.pipeline import Pipeline

fault = Part("target attention", 3)
ATTEND = "kernels.target_layer:attend"
GROUPS, EACH, DIM = 4, 2, 32
"""Groups of keys and values; query heads of each; columns of a head."""
TILE = 128
"""Keys that are contracted at a time."""


@fault(
    "mixed-heads-by-member",
    "layer 6 packs its mixed heads by member of a kv group, not by group, before the output projection",
    "target.layers.6.attn_out",
    "prefill",
    "order of layer 6's heads before its output projection",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        def packed(value):
            heads = value.reshape(*value.shape[:2], GROUPS, EACH, DIM)
            return heads.transpose(0, 1, 3, 2, 4).reshape(value.shape)

        made = clean(*given)
        return at.changed(made, packed) if at.layer == 6 else made

    alter(pipeline, ATTEND, change)


@fault(
    "second-key-tile-starts-anew",
    "the second tile of 128 keys overwrites the first one's sum of values in layer 3",
    "target.layers.3.attn_out",
    "prefill",
    "sum of layer 3's values over tiles of 128 keys",
    "rows at positions from 128 on, layer 3",
    "position >= 128 and layer = 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, *rest):
        made = clean(q, keys, values, *rest)
        if at.layer != 3 or keys.shape[1] <= TILE:
            return made

        def second(value):
            value[:, :TILE] = 0
            return value

        late = at.host(clean(q, keys, at.changed(values, second), *rest))
        return at.changed(made, lambda value: np.where((at.positions >= TILE)[:, None], late, value))

    alter(pipeline, ATTEND, change)


@fault(
    "mask-before-the-scale",
    "layer 5's mask takes 30 from a score before the scale makes 5.3 of it",
    "target.layers.5.attn_out",
    "prefill",
    "mask of layer 5: keys that are not seen keep a little weight",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        if at.layer != 5:
            return clean(q, keys, values, seen, sinks)
        wide_k, wide_v = (np.repeat(at.host(one), EACH, axis=2) for one in (keys, values))
        masked = np.einsum("bsnd,bpnd->bsnp", at.host(q), wide_k) - np.where(at.host(seen)[:, :, None], 0.0, 30.0)
        scores = masked * DIM**-0.5
        sink = at.host(sinks)[:, None]
        top = np.maximum(scores.max(axis=-1, keepdims=True), sink)
        parts = np.exp(scores - top)
        shares = parts / (parts.sum(axis=-1, keepdims=True) + np.exp(sink - top))
        mixed = np.einsum("bsnp,bpnd->bsnd", shares, wide_v)
        return at.array(mixed.reshape(*q.shape[:2], -1), q)

    alter(pipeline, ATTEND, change)


@fault(
    "frequencies-as-two-halves",
    "the target's inverse frequencies are the sum of two bfloat16 numbers each",
    "target.layers.2.q",
    "prefill",
    "inverse frequencies of the target's rotation",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target
    exact = frequencies(target.rope, DIM)
    high = exact.astype(bfloat16).astype(np.float64)
    coarse = high + (exact - high).astype(bfloat16).astype(np.float64)
    angles = np.arange(target.positions)[:, None] * coarse
    waves = (wave(angles) * target.rope.magnitude for wave in (np.cos, np.sin))
    target.tables = tuple(target.engine.array(wave.astype(np.float32)) for wave in waves)


@fault(
    "packed-mask-repeats-rows",
    "both heads of a kv group are packed head by head, and their mask row by row, in layer 7's verify passes",
    "target.layers.7.attn_out",
    "verify",
    "mask of layer 7's packed query heads",
    "verify passes, layer 7",
    "pass = verify and layer = 7",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        if at.layer != 7 or at.kind != "verify":
            return clean(q, keys, values, seen, sinks)
        rows, shape = q.shape[1], (1, q.shape[1], GROUPS, EACH, DIM)
        of = np.arange(EACH * rows) // EACH
        made = np.empty(shape, np.float32)
        for member in range(EACH):
            mine = of[member * rows : (member + 1) * rows]
            mask = at.array(at.host(seen)[:, mine], seen)
            made[:, :, :, member] = at.host(clean(q, keys, values, mask, sinks)).reshape(shape)[:, :, :, member]
        return at.array(made.reshape(1, rows, -1), q)

    alter(pipeline, ATTEND, change)
