"""Ninth set: faults of the drafter's rotation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.kernels.rope import tables
from parity.device.pipeline import Pipeline

fault = Part("draft rotation", 9)


# After https://github.com/vllm-project/vllm-ascend/issues/12723
@fault(
    "sines-read-behind-a-pad",
    "a row of the table is 16 cosines and 16 sines, and sines are read as if the cosines were padded to 20",
    "drafter.layers.0.attn_out",
    "prefill",
    "the drafter's sines: pair i has that of pair i + 4, the last four pairs have 0",
)
def _(pipeline: Pipeline) -> None:
    cos, sin = pipeline.drafter.tables
    wide = pipeline.engine.host(sin).copy()
    wide[:, :-4], wide[:, -4:] = wide[:, 4:].copy(), 0
    pipeline.drafter.tables = cos, pipeline.engine.array(wide)


# Of the class of https://github.com/ROCm/hip/issues/3902: a graph's replay reads what the step before left.
@fault(
    "queries-turn-by-the-other-buffer",
    "cos and sin of a draft pass lie in two buffers that take turns, and in even rounds queries read the other one",
    "drafter.layers.0.attn_out",
    "draft",
    "rotation of the drafter's queries: by the positions of the round before; keys turn as they should",
    "draft passes of even rounds",
    "pass = draft and round % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, x, cos, sin):
        if at.kind == "draft":
            held[at.round] = cos, sin
            if at.round % 2 == 0 and x.shape[2] == pipeline.drafter.config.attention.heads:
                return clean(x, *held[at.round - 1])
        return clean(x, cos, sin)

    alter(pipeline, "kernels.drafter_layer:rotate", change)


# From the equations: tables that grow when a position is behind their end, by another function than made them.
@fault(
    "grown-tables-unscaled",
    "the drafter's tables are made for 64 positions, and rows that are added behind them have plain frequencies",
    "drafter.layers.0.attn_out",
    "prefill",
    "the drafter's RoPE at positions from 64 on: frequencies without llama3's scaling",
    "rows at positions from 64 on",
    "position >= 64",
)
def _(pipeline: Pipeline) -> None:
    model, engine = pipeline.drafter, pipeline.engine
    plain = tables(replace(model.rope, kind="default"), model.config.attention.head_dim, model.positions)

    def grown(table, rows):
        return engine.array(np.concatenate([engine.host(table)[:64], rows[64:]]))

    cos, sin = (grown(*pair) for pair in zip(model.tables, plain, strict=True))
    model.tables = cos, sin
