"""Sixth set: faults of the target's final norm and head."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("head", 6)


# From the equations: a norm that takes two rows at a time, and of an odd number repeats the last one's partner.
@fault(
    "odd-row-borrows-its-scale",
    "the final norm takes rows by twos, and a last row without a partner is divided by the scale of the row before",
    "target.pre_head_hidden",
    "verify",
    "the target's final norm: the root mean square is that of the row before",
    "the last row of a pass of an odd number of rows; at K = 4 of every verify pass, row 4",
    "pass = verify and row = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        count = int((at.positions != at.pipeline.target.trash).sum())
        made = clean(x, weight, eps)
        if count < 2 or count % 2 == 0:
            return made
        given, last = at.host(x)[0], count - 1
        scale = np.sqrt(np.mean(np.square(given[last - 1])) + eps)

        def borrow(normed):
            normed[0, last] = given[last] / scale * at.host(weight)
            return normed

        return at.changed(made, borrow)

    alter(pipeline, "target:gpt_oss_norm", change)


# From the equations: 1264 columns are a vocabulary without its special tokens, and the rest is taken for padding.
@fault(
    "last-tile-of-logits-empty",
    "the head takes its last 16 columns, the special tokens', for padding, and their logits are 0",
    "target.logits",
    "prefill",
    "head: logits of the ids from 1264 on",
)
def _(pipeline: Pipeline) -> None:
    def cut(weight):
        weight[:, 1264:] = 0
        return weight

    rewritten(pipeline, pipeline.target.outer, "head", cut)
