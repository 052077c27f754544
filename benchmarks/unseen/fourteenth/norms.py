"""Fourteenth set: a fault of the target's norms."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("norms", 14)


# After https://github.com/ModelTC/LightLLM/issues/1467: a stride that one of two loops forgets.
@fault(
    "second-loop-without-the-stride",
    "the final norm gets a transposed stream in verify passes; the loop for squares goes by its stride, the one that "
    "divides walks on by 1",
    "target.pre_head_hidden",
    "verify",
    "input of the target's final norm, its root right: column c of row r is read at place r + c of the transposed rows",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        if at.kind != "verify":
            return clean(x, weight, eps)

        def norm(rows):
            root = np.sqrt(np.square(rows).mean(axis=-1, keepdims=True) + np.float32(eps))
            place = np.arange(rows.shape[1])[:, None] + np.arange(rows.shape[2])
            return rows[0].T.reshape(-1)[place][None] / root * at.host(weight)

        return at.changed(x, norm)

    alter(pipeline, "target:gpt_oss_norm", change)
