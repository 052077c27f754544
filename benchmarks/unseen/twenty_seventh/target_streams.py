"""Faults of embedding, norms, head and taps of the target."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment, replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("embedding, norms, head and taps", 27)


@fault(
    "embedding-table-in-int8-one-scale",
    "the embedding table is in int8 with one scale for all of it",
    "target.embed",
    "prefill",
    "embedding table",
)
def _(pipeline: Pipeline) -> None:
    def narrow(value):
        scale = np.abs(value).max() / 127
        return np.round(value / scale) * scale

    edit(pipeline.target, "embed", narrow)


@fault(
    "embedding-shard-behind-1024-one-low",
    "ids from 1024 on, the second shard of the table, take the row before theirs",
    "target.embed",
    "prefill",
    "embeddings of ids from 1024 on",
    "token ids of 1024 and more",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "embed", lambda value: np.concatenate([value[:1024], value[1023:-1]]))


@fault(
    "expert-norm-mean-over-padded-width",
    "the experts' norm divides the sum of squares by 128, the padded width, where 96 is meant",
    "target.layers.0.router_logits",
    "prefill",
    "mean square of the norm in front of the experts",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "post_norm", lambda value: value * (128 / 96) ** 0.5, every(pipeline.target))


@fault(
    "prefetched-norm-of-layer-before-in-verify",
    "in verify passes layers from 4 on take the input norm's weight that was prefetched for the layer before",
    "target.layers.4.attn_in",
    "verify",
    "input norm's weight of layers 4 to 7",
    "verify passes, layers from 4 on",
    "pass = verify and layer >= 4",
)
def _(pipeline: Pipeline) -> None:
    layers = pipeline.target.layers

    def change(at, clean, x, weight, eps):
        late = at.kind == "verify" and at.layer >= 4 and weight is layers[at.layer]["input_norm"]
        return clean(x, layers[at.layer - 1]["input_norm"] if late else weight, eps)

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", change)


@fault(
    "final-norm-weight-of-last-layer-norm",
    "the final norm has the weight of the last layer's norm in front of the experts",
    "target.pre_head_hidden",
    "prefill",
    "final norm's weight",
)
def _(pipeline: Pipeline) -> None:
    last = moment(pipeline).host(pipeline.target.layers[-1]["post_norm"])
    edit(pipeline.target, "norm", lambda value: last)


@fault(
    "odd-verify-rows-last-vocabulary-tile-stale",
    "the last 256 logits of every second row of a verify pass are those of the row before",
    "verify.logits",
    "verify",
    "logits 1024 to 1279 of odd verify rows",
    "every second row of a verify pass",
    "pass = verify and row % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        def stale(value):
            odd = value[:, 1::2].shape[1]
            value[:, 1::2, 1024:] = value[:, : 2 * odd : 2, 1024:]
            return value

        made = clean(*given)
        return at.changed(made, stale) if at.kind == "verify" else made

    alter(pipeline, "target:linear", change)


@fault(
    "middle-tap-in-front-of-the-experts",
    "the second tap is the stream behind its layer's attention, the experts not added yet",
    "drafter.taps",
    "prefill",
    "second of three taps",
)
def _(pipeline: Pipeline) -> None:
    kept = {}

    def attention(at, clean, *given):
        kept[at.layer] = clean(*given)
        return kept[at.layer]

    def change(_, clean, streams, taps):
        early = streams[taps[1] - 1] + kept[taps[1] - 1]
        return clean([early if number == taps[1] else one for number, one in enumerate(streams)], taps)

    alter(pipeline, "kernels.target_layer:row_parallel", attention)
    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "first-tap-of-tile-start-from-row-before",
    "the first row of each tile of 32 prefill rows but the first hands on the first tap of the row before",
    "drafter.taps",
    "prefill",
    "first of three taps, first row of a tile",
    "prefill rows at multiples of 32 from 32 on",
    "pass = prefill and row % 32 = 0 and row >= 32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        def stale(value):
            late = np.arange(32, value.shape[1], 32)
            value[:, late, :96] = value[:, late - 1, :96]
            return value

        made = clean(*given)
        return at.changed(made, stale) if at.kind == "prefill" else made

    replaced(pipeline, pipeline.target, "join", change)
