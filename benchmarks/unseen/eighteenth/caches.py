"""Faults of what a commit leaves in the target's caches, and of the drafter's."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e5m2

from benchmarks.unseen.moments import replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.kernels.rope import frequencies
from parity.device.pipeline import Pipeline

fault = Part("caches", 18)
WINDOW, PAGE = 32, 16


@fault(
    "pages-freed-in-full-layers-too",
    "a commit gives pages of 16 rows back that the window has left, those of full-attention layers among them",
    "kv.target.1.k",
    "commit",
    "caches of full-attention layers, rows of pages in front of the window",
    "commits, odd layers, rows in front of the page of 16 in which the window begins",
    "layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, length):
        clean(length)
        if at.kind == "commit":
            for one in (one for pair in pipeline.target.caches[1::2] for one in pair):
                one[:, : (length - WINDOW) // PAGE * PAGE] = 0.0

    replaced(pipeline, pipeline.target, "rollback", change)


@fault(
    "kept-keys-shifted-by-the-rejected",
    "a commit that rejects rows turns the kept ones' keys back by as many positions, as a shifted context asks for",
    "kv.target.0.k",
    "commit",
    "keys of a commit's kept rows in every layer, turned back by the number of rejected rows",
    "commits that keep fewer than all 5 rows",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target

    def change(at, clean, length):
        before = target.length
        rejected = pipeline.k + 1 - (length - before)
        if at.kind == "commit" and rejected:
            angles = rejected * frequencies(target.rope, 32)
            cos, sin = np.cos(angles), np.sin(angles)
            for keys, _ in target.caches:
                rows = at.host(keys[:, before:length])
                first, second = rows[..., :16], rows[..., 16:]
                turned = np.concatenate([first * cos + second * sin, second * cos - first * sin], axis=-1)
                keys[:, before:length] = at.array(turned, keys)
        clean(length)

    replaced(pipeline, target, "rollback", change)


@fault(
    "draft-keys-in-two-bits",
    "the drafter's keys are kept in fp8 (e5m2), the format that the server was given for the target",
    "drafter.layers.0.attn_out",
    "prefill",
    "key caches of every layer of the drafter, two bits behind the point",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        return (rows.astype(float8_e5m2).astype(np.float32) if part == "k" else rows), slots

    writing(pipeline, "drafter", change)
