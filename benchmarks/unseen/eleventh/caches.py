"""Eleventh set: faults of the target's caches."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 11)


# From the equations: a store that is aligned, and a first row that is not.
@fault(
    "writes-begin-at-a-multiple-of-four",
    "a verify pass' keys and values are stored as one block, whose first slot is rounded down to a multiple of 4",
    "target.layers.0.attn_out",
    "verify",
    "slots that a verify pass writes in every target layer: too early by its first position modulo 4",
    "verify passes whose first position is no multiple of 4: all of them but the first prompt's round 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "verify":
            slots = slots - slots[0, 0] % 4
        return rows, slots

    writing(pipeline, "target", change)


# After https://github.com/NVIDIA/TensorRT-LLM/pull/16378: two places that each turn what they are given.
@fault(
    "keys-turned-again-as-they-are-written",
    "the kernel that writes the cache turns keys, as its attention was not told that they are turned already",
    "target.layers.0.attn_out",
    "prefill",
    "keys of every target layer as they are cached: turned twice, by twice the angle, YaRN's magnitude squared",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if part == "k":
            cos, sin = (at.host(table)[:, :, None] for table in (at.step.cos, at.step.sin))
            first, second = np.split(rows, 2, axis=-1)
            rows = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
        return rows, slots

    writing(pipeline, "target", change)


# From the equations: a pipelined copy whose second buffer is read too early.
@fault(
    "values-a-row-late-in-verify",
    "a verify pass' values are stored while they are computed, and each row but the first gets those of the row before",
    "target.layers.0.attn_out",
    "verify",
    "values of rows 1 to 4 of verify passes as every target layer caches them: those of the row before; keys are right",
    "verify rows but the first",
    "pass = verify and row >= 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "verify" and part == "v":
            rows = np.concatenate([rows[:, :1], rows[:, :-1]], axis=1)
        return rows, slots

    writing(pipeline, "target", change)
