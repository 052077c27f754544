"""Twelfth set: faults of the drafter's layers."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft layers", 12)
NORM = "kernels.drafter_layer:llama_norm"


# From the equations: a hidden that is learnt, and taken for one that is ready.
@fault(
    "learnt-hidden-not-normed",
    "the midlayer norms the hidden of committed rows, and takes that of masked rows as fc leaves it",
    "drafter.layers.0.attn_out",
    "draft",
    "hidden_norm of the midlayer: masked rows go without it",
    "masked rows",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        if weight is not pipeline.drafter.layers[0]["hidden_norm"] or not at.masked:
            return made
        rows, masked = at.host(x), slice(at.committed, at.committed + at.masked)

        def keep(normed):
            normed[:, masked] = rows[:, masked]
            return normed

        return at.changed(made, keep)

    alter(pipeline, NORM, change)


# After https://github.com/flashinfer-ai/flashinfer/pull/3879: a block's last warp adds its squares where nobody reads.
@fault(
    "squares-of-the-last-warp-not-read",
    "the drafter's norm in front of its feed-forward adds squares in six warps, and the last one's sum is not read",
    "drafter.layers.0.ffn_out",
    "prefill",
    "root mean square of every drafter layer's post-attention norm: without the squares of columns 80 to 95",
)
def _(pipeline: Pipeline) -> None:
    weights = [layer["post_norm"] for layer in pipeline.drafter.layers]

    def change(at, clean, x, weight, eps):
        if not any(weight is one for one in weights):
            return clean(x, weight, eps)

        def norm(rows):
            squares = np.square(rows[..., :80]).sum(axis=-1, keepdims=True)
            return rows / np.sqrt(squares / rows.shape[-1] + np.float32(eps)) * at.host(weight)

        return at.changed(x, norm)

    alter(pipeline, NORM, change)


# From the equations: a kernel for four rows, and another one for the rest.
@fault(
    "rows-behind-the-fourth-in-eight-bits",
    "the feed-forward takes four rows of a draft pass as they are, and the rest by a kernel of float8",
    "drafter.layers.0.ffn_out",
    "draft",
    "input of the feed-forward in every drafter layer: three bits behind the point",
    "rows of draft passes from 4 on",
    "pass = draft and row >= 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        def narrow(rows):
            rows[:, 4:] = rows[:, 4:].astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
            return rows

        return clean(at.changed(x, narrow) if at.kind == "draft" else x, weights)

    alter(pipeline, "kernels.drafter_layer:_mlp", change)
