"""Faults of what a row sees: windows and masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from parity.device.faults.planting import EITHER, PARALLEL, Family, during, instead
from parity.device.model import Model
from parity.device.pipeline import Pipeline

OUT, OUTS = "target.layers.0.attn_out", ("target.layers.*.attn_out",)
EVEN, ODD = ("target.layers.[02468].attn_out",), ("target.layers.[13579].attn_out",)
DRAFT, DRAFTED = "drafter.layers.0.attn_out", ("drafter.layers.*.attn_out",)
fault = Family("masks", sites=OUTS)
drafter = Family("masks", sites=DRAFTED, same_text=True, drafters=EITHER)


@fault("attn-window-missing", "sliding window not applied", OUT, sites=EVEN, seen="TensorRT-Model-Connect #400")
def _(pipeline: Pipeline) -> None:
    _windows(pipeline, lambda layer, window: None)


@fault(
    "attn-window-missing-once",
    "layer 4: sliding window not applied",
    "target.layers.4.attn_out",
    sites=("target.layers.4.attn_out",),
    seen="class of TensorRT-Model-Connect #400",
)
def _(pipeline: Pipeline) -> None:
    _windows(pipeline, lambda layer, window: None if layer == 4 else window)


@fault("attn-window-one-wide", "0 <= q - k <= window", OUT, sites=EVEN, seen="ports that count the query apart")
def _(pipeline: Pipeline) -> None:
    _windows(pipeline, lambda layer, window: window and window + 1)


@fault("attn-window-one-narrow", "window one key too short", OUT, sites=EVEN, seen="ports that count the query twice")
def _(pipeline: Pipeline) -> None:
    _windows(pipeline, lambda layer, window: window and window - 1)


@fault("attn-window-odd-layers", "odd layers slide, even ones are full", OUT, seen="ports that count layers from one")
def _(pipeline: Pipeline) -> None:
    windows = pipeline.target.windows
    _windows(pipeline, lambda layer, window: windows[layer ^ 1])


@fault("attn-window-everywhere", "every layer slides", "target.layers.1.attn_out", sites=ODD, seen="ports from Mistral")
def _(pipeline: Pipeline) -> None:
    _windows(pipeline, lambda layer, window: pipeline.target.windows[0])


@fault(
    "attn-mask-one-ahead",
    "each row sees the key behind its own",
    OUT,
    sites=(*OUTS, *DRAFTED),
    seen="masks made with the wrong diagonal",
)
def _(pipeline: Pipeline) -> None:
    during(
        pipeline,
        "kernels.step:visible",
        lambda clean: lambda positions, keys, window: clean(positions + 1, keys, window and window + 1),
    )


@fault(
    "attn-mask-strict",
    "a row does not see itself",
    OUT,
    sites=(*OUTS, *DRAFTED),
    seen="masks made with the wrong diagonal",
)
def _(pipeline: Pipeline) -> None:
    during(
        pipeline,
        "kernels.step:visible",
        lambda clean: lambda positions, keys, window: clean(positions - 1, keys, window and window - 1),
    )


@drafter(
    "attn-drafter-window",
    "the target's sliding window applied in the drafter",
    DRAFT,
    seen="drafters that inherit the target's config",
)
def _(pipeline: Pipeline) -> None:
    window = pipeline.target.windows[0]
    _seen(pipeline.drafter, lambda rows, clean, distance: np.logical_and(clean, distance < window))


@drafter(
    "attn-drafter-masked-bidirectional",
    "masked rows see each other in both directions",
    DRAFT,
    round=1,
    seen="cross-depth masks of P-EAGLE's training",
    drafters=PARALLEL,
)
def _(pipeline: Pipeline) -> None:
    def change(rows: Any, clean: Any, distance: Any) -> Any:
        if rows.width != 2 * pipeline.k:
            return clean
        behind = rows.positions - int(rows.positions[0, rows.count - 1])
        return distance >= pipeline.drafter.engine.array(behind)[:, :, None]

    _seen(pipeline.drafter, change)


@drafter("input-context-blind", "the draft window sees only itself, not the cache", DRAFT, round=1, seen="NKIPy PR 63")
def _(pipeline: Pipeline) -> None:
    def change(rows: Any, clean: Any, distance: Any) -> Any:
        first = int(rows.positions[0, 0])
        return np.logical_and(clean, distance <= pipeline.drafter.engine.array(rows.positions - first)[:, :, None])

    _seen(pipeline.drafter, change)


def _windows(pipeline: Pipeline, change: Callable[[int, int | None], int | None]) -> None:
    target = pipeline.target
    target.windows = tuple(change(layer, window) for layer, window in enumerate(target.windows))


def _seen(model: Model, change: Callable[[Any, Any, Any], Any]) -> None:
    """Replace the mask of every pass: `change(rows, clean [B, S, P], q - k)`."""

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def step(rows: Any) -> Any:
            made = clean(rows)
            keys = np.arange(made.span, dtype=np.int32)
            distance = model.engine.array(rows.positions)[:, :, None] - keys
            seen = {window: change(rows, mask, distance) for window, mask in made.seen.items()}
            return replace(made, seen=seen)

        return step

    instead(model, "step", make)
