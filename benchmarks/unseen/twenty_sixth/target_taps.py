"""Faults of the residual stream and of the taps that are taken from it."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target residual stream and taps", 26)


class Behind:
    """A layer's tap that hands what it was given of each part to `change(part, value)`, which says what goes on."""

    def __init__(self, tap, change):
        self.tap, self.change = tap, change

    def __call__(self, part, value):
        return self.change(part, self.tap(part, value))

    def __getattr__(self, name):
        return getattr(self.tap, name)


@fault(
    "fused-norm-keeps-old-residual-once",
    "the fused add and norm of layer 5 does not write its sum back: the residual stream lacks the attention's output",
    "target.layers.5.out",
    "prefill",
    "residual stream behind the experts of layer 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, held, x, step, tap):
        parts = {}

        def watch(part, value):
            parts[part] = value
            return value - parts["attn_out"] if part == "ffn_out" else value

        return clean(held, x, step, Behind(tap, watch) if held == 5 else tap)

    replaced(pipeline, pipeline.target, "layer", change)


@fault(
    "third-tap-in-mid-layer",
    "the third tap is taken between attention and experts of layer 4, where what leaves the layer is meant",
    "drafter.taps",
    "prefill",
    "third of three taps",
)
def _(pipeline: Pipeline) -> None:
    mid = {}

    def layer(at, clean, held, x, step, tap):
        def watch(part, value):
            if part == "attn_out":
                mid[held] = x + value
            return value

        return clean(held, x, step, Behind(tap, watch))

    def join(at, clean, streams, taps):
        third = taps[2]
        return clean([*streams[:third], mid[third - 1], *streams[third + 1 :]], taps)

    replaced(pipeline, pipeline.target, "layer", layer)
    replaced(pipeline, pipeline.target, "join", join)


@fault(
    "verify-taps-buffer-of-four-rows",
    "the buffer of a verify pass' taps has four rows: rows behind them repeat the fourth",
    "drafter.taps",
    "draft",
    "taps of rows from row 4 on",
    "committed rows from row 4 on of drafts whose taps a verify pass left",
    "pass = draft and round >= 2 and row >= 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        def full(value):
            value[:, 4:] = value[:, 3:4]
            return value

        made = clean(streams, taps)
        return at.changed(made, full) if at.kind == "verify" else made

    replaced(pipeline, pipeline.target, "join", change)
