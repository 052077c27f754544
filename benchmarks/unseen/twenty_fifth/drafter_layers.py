"""Faults of the drafter's norms and of its MLP."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.kernels.linear import linear
from parity.device.pipeline import Pipeline

fault = Part("norms and MLP of the drafter", 25)
MLP = "kernels.drafter_layer:_mlp"


def gate_and_up(at, x, weights):
    """Both projections on the host, in float32."""
    return at.host(linear(x, weights["gate"])), at.host(linear(x, weights["up"]))


def silu(gate):
    """gate * sigmoid(gate)."""
    return gate / (1.0 + np.exp(-gate))


@fault(
    "final-norm-centres-the-draft-rows",
    "the drafter's final norm takes the mean away first, as LayerNorm does",
    "drafter.pre_head_hidden",
    "draft",
    "the drafter's final norm",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        return clean(at.changed(x, lambda value: value - value.mean(axis=-1, keepdims=True)), weight, eps)

    alter(pipeline, "drafter:llama_norm", change)


@fault(
    "mlp-tail-tile-has-no-sigmoid",
    "columns from 192 on of the drafter's MLP are gate times up, without the sigmoid",
    "drafter.layers.0.ffn_out",
    "prefill",
    "activation of the drafter's MLP, columns 192 to 223, in every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        gate, up = gate_and_up(at, x, weights)
        active = up * silu(gate)
        active[..., 192:] = (up * gate)[..., 192:]
        return linear(at.array(active, x), weights["down"])

    alter(pipeline, MLP, change)


@fault(
    "last-layer-input-norm-adds-one",
    "the input norm of the drafter's layer 3 multiplies by one plus its weight, as Gemma's do",
    "drafter.layers.3.attn_out",
    "prefill",
    "layer 3's input norm",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "input_norm", lambda value: value + 1, [3])


@fault(
    "mlp-tile-head-repeats-row-before",
    "in a prefill the first row of each further tile of 16 gets the row before's output of layer 2's MLP",
    "drafter.layers.2.ffn_out",
    "prefill",
    "output of layer 2's MLP at the edges of tiles",
    "rows 16, 32, 48 and so on of a prefill, in layer 2",
    "pass = prefill and layer = 2 and row % 16 = 0 and row > 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        def repeated(value):
            edges = np.arange(16, value.shape[1], 16)
            value[:, edges] = value[:, edges - 1]
            return value

        made = clean(x, weights)
        return at.changed(made, repeated) if at.kind == "prefill" and at.layer == 2 else made

    alter(pipeline, MLP, change)


@fault(
    "draft-activations-clipped-to-first-row",
    "the MLP's activations of a draft pass are cut off at the largest one of its first row, which gives the scale",
    "drafter.layers.0.ffn_out",
    "draft",
    "range of the activations of the drafter's MLP, in every layer",
    "rows of a draft pass behind the first, with activations beyond the first row's",
    "pass = draft and row > 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        if at.kind != "draft":
            return clean(x, weights)
        gate, up = gate_and_up(at, x, weights)
        active = up * silu(gate)
        most = np.abs(active[:, 0]).max()
        return linear(at.array(np.clip(active, -most, most), x), weights["down"])

    alter(pipeline, MLP, change)
