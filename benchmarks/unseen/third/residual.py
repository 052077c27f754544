"""Third set: faults of norms, embeddings and residual streams."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("norms and residual", 3)
NORM = "kernels.target_layer:gpt_oss_norm"
TRASH = 512
"""The slot of padding."""


@fault(
    "eps-behind-the-root",
    "the norms of the target's layers add eps to the root of the mean square, not under it",
    "target.layers.0.attn_in",
    "prefill",
    "eps of every norm of the target's layers; the stream is too large from layer 1 on for it to show",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        wide = at.host(x)
        root = np.sqrt(np.square(wide).mean(axis=-1, keepdims=True))
        return at.array(wide / (root + np.float32(eps)) * at.host(weight), x)

    alter(pipeline, NORM, change)


@fault(
    "attention-not-added-in-the-last-row",
    "columns from 64 on of the prompt's last row do not take up attention's output in layer 1",
    "target.layers.1.router_logits",
    "prefill",
    "residual addition behind layer 1's attention, columns 64 to 95",
    "last row of prefill passes, layer 1",
    "pass = prefill and layer = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, held, x, step, tap):
        def cut(value):
            value[:, (at.positions < TRASH).sum() - 1, 64:] = 0
            return value

        def late(part, value):
            made = tap(part, value)
            return at.changed(made, cut) if part == "attn_out" else made

        return clean(held, x, step, late if held == 1 and at.kind == "prefill" else tap)

    replaced(pipeline, pipeline.target, "layer", change)


@fault(
    "root-from-sixteen-entries",
    "layer 3's input norm takes the root of a mean square that is cut to four bits",
    "target.layers.3.attn_in",
    "prefill",
    "root mean square of layer 3's input norm",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        if weight is not pipeline.target.layers[3]["input_norm"]:
            return clean(x, weight, eps)
        wide = at.host(x)
        mantissa, exponent = np.frexp(np.square(wide).mean(axis=-1, keepdims=True) + eps)
        mean = np.ldexp(np.floor(mantissa * 32) / 32, exponent)
        return at.array((wide / np.sqrt(mean) * at.host(weight)).astype(np.float32), x)

    alter(pipeline, NORM, change)


@fault(
    "embedding-ends-at-draft-vocabulary",
    "the drafter's embedding of ids from 992, the size of the draft vocabulary, on is that of 991",
    "drafter.layers.0.attn_out",
    "prefill",
    "the drafter's embeddings of ids from 992 on",
    "rows with an id of 992 or more, masked rows among them",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, table):
        return clean(at.changed(ids, lambda value: np.minimum(value, 991)), table)

    alter(pipeline, "drafter:embed", change)


@fault(
    "mlp-added-twice-behind-four-rows",
    "rows behind the fourth of a draft pass take up layer 1's feed-forward output twice",
    "drafter.layers.1.out",
    "draft",
    "residual addition behind layer 1's feed-forward",
    "rows of draft passes from 4 on, layer 1",
    "pass = draft and row >= 4 and layer = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, step, weights, held, config, tap):
        added = {}

        def twice(part, value):
            if part == "out":
                return tap(part, at.changed(value, again))
            added[part] = tap(part, value)
            return added[part]

        def again(value):
            value[:, 4:] += at.host(added["ffn_out"])[:, 4:]
            return value

        return clean(x, step, weights, held, config, twice if at.layer == 1 and at.kind == "draft" else tap)

    alter(pipeline, "drafter:plain_layer", change)
