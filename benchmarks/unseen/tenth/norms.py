"""Tenth set: faults of norms, the target's and the drafter's."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("norms", 10)
NORM = "kernels.target_layer:gpt_oss_norm"


# From the equations: another norm, which takes the mean off.
@fault(
    "post-norms-take-the-mean-off",
    "the norm behind attention is a layer norm without a bias: the row's mean is taken off first",
    "target.layers.0.router_logits",
    "prefill",
    "every layer's post-attention norm: the mean of the row is subtracted",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        if weight is not pipeline.target.layers[at.layer]["post_norm"]:
            return clean(x, weight, eps)

        def norm(rows):
            rows = rows - rows.mean(axis=-1, keepdims=True)
            root = np.sqrt(np.square(rows).mean(axis=-1, keepdims=True) + np.float32(eps))
            return rows / root * at.host(weight)

        return at.changed(x, norm)

    alter(pipeline, NORM, change)


# Of the class of https://github.com/vllm-project/vllm/issues/48271: a block size that follows the number of rows.
@fault(
    "many-rows-by-a-shorter-block",
    "passes of more than 128 rows take their roots from a block of 64 columns",
    "target.layers.0.attn_in",
    "prefill",
    "root mean square of every layer's input norm: that of columns 0 to 63",
    "prefill passes of more than 128 rows: the first prompt's",
)
def _(pipeline: Pipeline) -> None:
    model = pipeline.target

    def change(at, clean, x, weight, eps):
        few = (at.positions < model.trash).sum() <= 128
        if few or at.kind != "prefill" or weight is not model.layers[at.layer]["input_norm"]:
            return clean(x, weight, eps)

        def norm(rows):
            root = np.sqrt(np.square(rows[..., :64]).mean(axis=-1, keepdims=True) + np.float32(eps))
            return rows / root * at.host(weight)

        return at.changed(x, norm)

    alter(pipeline, NORM, change)


# From the equations: a parameter that the first row of a launch has, and the others do not.
@fault(
    "later-drafts-without-the-weight",
    "the drafter's final norm multiplies its weight into the first row that it is given alone",
    "drafter.pre_head_hidden",
    "draft",
    "the drafter's final norm: its weight is missing",
    "all drafts of a round but the first",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        bare = at.host(clean(x, at.changed(weight, np.ones_like), eps))

        def take(rows):
            rows[:, 1:] = bare[:, 1:]
            return rows

        return at.changed(clean(x, weight, eps), take)

    alter(pipeline, "drafter:llama_norm", change)
