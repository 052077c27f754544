"""Sixth set: faults of the drafter's layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("drafter's layers", 6)


# From the equations: rows padded to the next multiple of 64, and a mean over all of it.
@fault(
    "mean-over-padding",
    "the norm of the fused hidden divides its 96 squares by the padded width of 128",
    "drafter.layers.0.attn_out",
    "prefill",
    "hidden_norm of the midlayer: its output is the square root of 4 / 3 too large",
)
def _(pipeline: Pipeline) -> None:
    weight = pipeline.drafter.layers[0]["hidden_norm"]

    def change(at, clean, x, given, eps):
        made = clean(x, given, eps)
        return at.changed(made, lambda value: value * np.float32((4 / 3) ** 0.5)) if given is weight else made

    alter(pipeline, "kernels.drafter_layer:llama_norm", change)


# From the equations: of llama3's three bands a port has two.
@fault(
    "no-band-between",
    "llama3's frequencies between its two wavelengths are divided by the factor as the low ones are",
    "drafter.layers.0.attn_out",
    "prefill",
    "the drafter's RoPE: pairs 2 and 3 turn too slowly, as nothing blends between the bands",
)
def _(pipeline: Pipeline) -> None:
    rope, dim = pipeline.drafter.rope, pipeline.drafter.config.attention.head_dim
    plain = rope.theta ** (-np.arange(0, dim, 2) / dim)
    turns = np.where(rope.original * plain / (2 * np.pi) >= rope.fast, plain, plain / rope.factor)
    angles = np.arange(pipeline.drafter.positions)[:, None] * turns
    tables = (wave(angles).astype(np.float32) for wave in (np.cos, np.sin))
    pipeline.drafter.tables = tuple(pipeline.engine.array(one) for one in tables)


@dataclass
class Stale:
    """A tap of a layer, whose `out` is its residual and `ffn_out` alone."""

    tap: Any
    residual: Any
    added: Any = None

    def __call__(self, part: str, value: Any) -> Any:
        taken = self.tap(part, self.residual + self.added if part == "out" else value)
        self.added = taken if part == "ffn_out" else self.added
        return taken


# After https://github.com/vllm-project/vllm/pull/26164
@fault(
    "stale-residual",
    "layer 2 adds its MLP to the residual as it was before attention; the MLP's input has attention in it",
    "drafter.layers.2.out",
    "prefill",
    "residual of drafter layer 2: its attn_out is missing from what leaves it",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, residual, *middle):
        *middle, tap = middle
        return clean(residual, *middle, Stale(tap, residual) if at.layer == 2 else tap)

    alter(pipeline, "kernels.drafter_layer:_rest", change)


# From the equations: ids are expanded in groups of four, and a full group leaves no room for its last token.
@fault(
    "fourth-token-masked",
    "behind a round that emitted four tokens the last of them is embedded as the placeholder",
    "drafter.layers.0.attn_out",
    "draft",
    "embedding of the last committed row of a draft pass, its hidden as it should be",
    "draft passes of four committed rows, which follow a round that accepted three drafts, row 3",
    "pass = draft and accepted = 3 and row = 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        if at.kind == "draft" and at.committed == 4:
            ids = rows.ids.copy()
            ids[0, 3] = at.pipeline.drafter.config.placeholder
            rows = replace(rows, ids=ids)
        return clean(rows)

    replaced(pipeline, pipeline.drafter, "embedded", change)
