"""The drafter's attention: heads, rotation, softmax, mask, output projection."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.unseen.moments import Moment, alter
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("attention of the drafter", 28)
TILE = 64


@fault(
    "second-head-tile-restarts-groups",
    "Query heads run in tiles of 8 and each tile counts its kv heads from 0: heads 8 to 11 read the first groups.",
    "drafter.layers.0.attn_out",
    "prefill",
    "query heads 8 to 11 read kv heads 0, 0, 0, 1 in the place of 2, 3, 3, 3",
)
def _(pipeline: Pipeline) -> None:
    def attend(at: Moment, clean: Any, q: Any, keys: Any, values: Any, seen: Any) -> Any:
        index = np.arange(q.shape[2]) % 8 // (q.shape[2] // keys.shape[2])
        each = [at.array(at.host(one)[:, :, index], one) for one in (keys, values)]
        return clean(q, *each, seen)

    alter(pipeline, "kernels.drafter_layer:attend", attend)


@fault(
    "llama3-blend-turned-round",
    "The llama3 scaling blends its middle band the wrong way round: the scaled frequency has the plain one's weight.",
    "drafter.layers.0.attn_out",
    "prefill",
    "the drafter's rotation between the two wavelength bounds; frequencies outside them are right",
)
def _(pipeline: Pipeline) -> None:
    drafter, rope = pipeline.drafter, pipeline.drafter.rope
    dim = drafter.config.attention.head_dim
    plain = rope.theta ** (-np.arange(0, dim, 2) / dim)
    smooth = np.clip((rope.original * plain / (2 * np.pi) - rope.slow) / (rope.fast - rope.slow), 0, 1)
    turned = np.where((smooth > 0) & (smooth < 1), 1 - smooth, smooth)
    angles = np.arange(drafter.positions)[:, None] * (plain * turned + plain / rope.factor * (1 - turned))
    drafter.tables = tuple(pipeline.engine.array(wave(angles).astype(np.float32)) for wave in (np.cos, np.sin))


@fault(
    "o-heads-traded",
    "The output projection of layer 1 is packed by pairs of heads, and one pair is packed in the other order.",
    "drafter.layers.1.attn_out",
    "prefill",
    "rows of heads 4 and 5 of the output projection of layer 1 are swapped",
)
def _(pipeline: Pipeline) -> None:
    def change(o: np.ndarray) -> np.ndarray:
        return np.concatenate([o[:128], o[160:192], o[128:160], o[192:]])

    rewritten(pipeline, pipeline.drafter.layers[1], "o", change)


@fault(
    "softmax-sum-not-rescaled",
    "The softmax over tiles of 64 keys rescales its denominator where the maximum rises, and forgets the mixed values.",
    "drafter.layers.0.attn_out",
    "prefill",
    "values of earlier key tiles weigh too much where a later tile holds the row's largest score",
    "queries that see a second tile of 64 keys",
    "position >= 64",
)
def _(pipeline: Pipeline) -> None:
    def attend(at: Moment, clean: Any, q: Any, keys: Any, values: Any, seen: Any) -> Any:
        each = q.shape[2] // keys.shape[2]
        query, visible = at.host(q)[0].transpose(1, 0, 2), at.host(seen)[0]
        key, value = (at.host(one)[0].repeat(each, axis=1).transpose(1, 0, 2) for one in (keys, values))
        top = np.full((*query.shape[:2], 1), -1e30, np.float32)
        total, mixed = np.zeros_like(top), np.zeros_like(query)
        for start in range(0, key.shape[1], TILE):
            tile = slice(start, start + TILE)
            scores = query @ key[:, tile].transpose(0, 2, 1) * query.shape[-1] ** -0.5
            scores = np.where(visible[None, :, tile], scores, -1e30)
            risen = np.maximum(top, scores.max(axis=-1, keepdims=True))
            parts = np.exp(scores - risen)
            total = total * np.exp(top - risen) + parts.sum(axis=-1, keepdims=True)
            mixed, top = mixed + parts @ value[:, tile], risen
        return at.array((mixed / total).transpose(1, 0, 2).reshape(1, q.shape[1], -1), q)

    alter(pipeline, "kernels.drafter_layer:attend", attend)


@fault(
    "masked-rows-apart",
    "The training mask is left on: a masked row sees the committed rows and itself, no masked row before it.",
    "drafter.layers.0.attn_out",
    "draft",
    "keys of earlier masked rows are hidden from masked rows",
    "masked rows behind the first one of a draft pass",
)
def _(pipeline: Pipeline) -> None:
    def attend(at: Moment, clean: Any, q: Any, keys: Any, values: Any, seen: Any) -> Any:
        if at.kind != "draft":
            return clean(q, keys, values, seen)
        mask, slots = at.host(seen).copy(), at.positions
        for row in range(at.committed + 1, at.committed + at.masked):
            mask[0, row, slots[at.committed] : slots[row]] = False
        return clean(q, keys, values, at.array(mask, seen))

    alter(pipeline, "kernels.drafter_layer:attend", attend)


@fault(
    "layer-1-rotation-of-first-round",
    "Layer 1 is captured as a graph of its own in the first round, its cosines and sines with it.",
    "drafter.layers.1.attn_out",
    "draft",
    "queries and keys of layer 1 are turned by the positions of round 1's draft pass",
    "draft passes from the second round of a prompt on",
    "pass = draft and round >= 2",
)
def _(pipeline: Pipeline) -> None:
    held: dict[str, Any] = {}

    def layer(at: Moment, clean: Any, x: Any, step: Any, *rest: Any) -> Any:
        if at.kind == "draft" and at.layer == 1:
            if at.round == 1:
                held.update(cos=step.cos, sin=step.sin)
            step = replace(step, **held)
        return clean(x, step, *rest)

    alter(pipeline, "drafter:plain_layer", layer)
