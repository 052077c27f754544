"""Faults of the target's final norm and language-model head."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("final norm and head of the target", 21)
ADDED = 1264
"""The first of the added tokens."""


@fault(
    "final-norm-adds-in-bfloat16",
    "the final norm adds its squares one by one in bfloat16",
    "target.pre_head_hidden",
    "prefill",
    "final norm: the sum of squares",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        wide = at.host(x)
        total = np.zeros(wide.shape[:-1], np.float32)
        for column in np.moveaxis(wide * wide, -1, 0):
            total = (total + column).astype(ml_dtypes.bfloat16).astype(np.float32)
        size = np.sqrt(total / wide.shape[-1] + eps)[..., None]
        return at.array(wide / size * at.host(weight), x)

    alter(pipeline, "target:gpt_oss_norm", change)


@fault(
    "added-tokens-without-head",
    "the head's columns of the added tokens, 1264 on, are zero: the table was resized behind the load",
    "target.logits",
    "prefill",
    "head, columns 1264 to 1279",
)
def _(pipeline: Pipeline) -> None:
    def cut(value):
        value[:, ADDED:] = 0
        return value

    rewritten(pipeline, pipeline.target.outer, "head", cut)


@fault(
    "bonus-logits-of-row-before",
    "the rows whose logits a verify pass wants are counted to K, not K + 1: the bonus row takes the one before",
    "verify.logits",
    "verify",
    "hidden that the head takes for the last row of a verify pass",
    "the last of a verify pass' rows",
    "pass = verify and row = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        if at.kind == "verify" and x.shape[1] > 1:
            x = np.concatenate([x[:, :-1], x[:, -2:-1]], axis=1)
        return clean(x, weight)

    alter(pipeline, "target:linear", change)
