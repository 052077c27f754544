"""Faults of the target's embeddings, norms and residual stream."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("embedding, norms and residual stream of the target", 21)
NORM = "kernels.target_layer:gpt_oss_norm"
TILE, SHARD = 32, 1024


def is_weight(at, name, weight):
    """Whether it is the weight of this name of the layer that runs."""
    return weight is at.pipeline.target.layers[at.layer][name]


@fault(
    "second-vocabulary-shard-one-early",
    "the second shard of the embedding table begins one row early: ids from 1024 on take the row before their own",
    "target.embed",
    "prefill",
    "embedding rows of ids from 1024 on",
    "rows whose token id is 1024 or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, table):
        return clean(at.changed(ids, lambda value: value - (value >= SHARD)), table)

    alter(pipeline, "target:embed", change)


@fault(
    "add-norm-over-padded-width",
    "the fused add and norm before the experts divides the sum of squares by the padded width, 128 for 96",
    "target.layers.0.router_logits",
    "prefill",
    "post-attention norm of every layer: its mean",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        if is_weight(at, "post_norm", weight):
            weight = weight.astype(np.float32) * float((128 / 96) ** 0.5)
        return clean(x, weight, eps)

    alter(pipeline, NORM, change)


@fault(
    "tile-end-normed-by-neighbour",
    "the last row of each tile of 32 is divided by the root mean square of the row before",
    "target.layers.0.attn_in",
    "prefill",
    "input norm of every layer: the root mean square of a tile's last row",
    "the last row of every 32 of a prefill",
    "pass = prefill and row % 32 = 31",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        if at.kind != "prefill" or not is_weight(at, "input_norm", weight):
            return made
        size = np.sqrt(np.mean(at.host(x) ** 2, axis=-1, keepdims=True) + eps)
        ends = np.arange(TILE - 1, size.shape[1], TILE)

        def borrowed(value):
            value[:, ends] *= size[:, ends] / size[:, ends - 1]
            return value

        return at.changed(made, borrowed)

    alter(pipeline, NORM, change)


class Aliased:
    """A tap of a layer behind which the norm's output stands in the residual's buffer."""

    def __init__(self, tap, held):
        self.tap, self.held = tap, held

    def __call__(self, part, value):
        return self.tap(part, value - self.held["x"] + self.held["normed"] if part == "out" else value)

    def at(self, layer):
        return Aliased(self.tap.at(layer), self.held)

    def of(self, group):
        return Aliased(self.tap.of(group), self.held)


@fault(
    "norm-in-the-residual-buffer",
    "layer 6: the norm before the experts writes into the residual's buffer, to which their output is added",
    "target.layers.6.out",
    "prefill",
    "residual behind the experts of layer 6",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def norm(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        if is_weight(at, "post_norm", weight):
            held.update(x=x, normed=made)
        return made

    def layer(at, clean, *given):
        *rest, tap = given
        return clean(*rest, Aliased(tap, held) if at.layer == 6 else tap)

    alter(pipeline, NORM, norm)
    alter(pipeline, "target:target_layer", layer)
