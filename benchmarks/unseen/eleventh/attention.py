"""Eleventh set: faults of the target's attention."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("attention", 11)
ATTEND = "kernels.target_layer:attend"


# After https://github.com/HabanaAI/vllm-fork/issues/275: a constant for the maximum, here with a narrow exponential.
@fault(
    "exponentials-about-a-constant",
    "the softmax subtracts 10 from every score, not the row's largest, and keeps its exponentials in half precision",
    "target.layers.0.attn_out",
    "prefill",
    "exponentials of every target layer's softmax, the sinks' too: of a score less 10, in half precision",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        if sink is None:
            return clean(x)
        scores, sinks = (np.exp(at.host(part) - 10).astype(np.float16).astype(np.float32) for part in (x, sink))
        return at.array(scores / (scores.sum(axis=-1, keepdims=True) + sinks), x)

    alter(pipeline, "kernels.attention:softmax", change)


# After https://github.com/ROCm/aiter/issues/2720: rows of a query whose number is no power of two.
@fault(
    "verify-rows-attend-as-the-first",
    "a kernel for a few rows of a text takes 1, 2, 4 or 8 of them, and of five it copies the first one's output",
    "target.layers.0.attn_out",
    "verify",
    "attention of every target layer in verify passes: rows 1 to 4 have row 0's output",
    "verify rows but the first",
    "pass = verify and row >= 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        made = clean(*given)
        if at.kind != "verify":
            return made
        return at.changed(made, lambda rows: np.repeat(rows[:, :1], rows.shape[1], axis=1))

    alter(pipeline, ATTEND, change)


# From the equations: a transposition that is missing in front of a reshape.
@fault(
    "heads-merged-by-column",
    "attention's output is flattened with the columns of a head outside and heads inside, in front of its projection",
    "target.layers.0.attn_out",
    "prefill",
    "order of the output projection's inputs in every target layer: column 0 of all heads, then column 1, and so on",
)
def _(pipeline: Pipeline) -> None:
    heads = pipeline.target.config.attention.heads

    def change(at, clean, *given):
        def merge(rows):
            return rows.reshape(*rows.shape[:2], heads, -1).swapaxes(2, 3).reshape(rows.shape)

        return at.changed(clean(*given), merge)

    alter(pipeline, ATTEND, change)


# From the equations: a window that is cut to the keys which a chunk's own pass made.
@fault(
    "window-begins-with-the-chunk",
    "a prompt runs in chunks of 64 rows, and sliding layers look for their window's keys in the row's own chunk alone",
    "target.layers.0.attn_out",
    "prefill",
    "the mask of sliding layers in prefills: keys in front of the row's chunk of 64 are not seen",
    "prefill rows from 64 on, the first 31 of each chunk of 64, even layers",
    "pass = prefill and position >= 64 and position % 64 < 31 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        if at.kind == "prefill" and pipeline.target.windows[at.layer] is not None:
            real = at.positions < pipeline.target.trash
            start = np.where(real, at.positions // 64 * 64, 0)
            seen = at.engine.array(at.host(seen) & (np.arange(seen.shape[-1]) >= start[:, None]))
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, ATTEND, change)


# Of another family's setting, `attn_temperature_tuning`: queries of full layers that grow with their positions.
@fault(
    "queries-tempered-by-position",
    "full layers multiply queries by 1 + 0.1 log(1 + (position + 1) div 64), as another family's full layers do",
    "target.layers.1.attn_out",
    "prefill",
    "the score scale of full layers: 7 % too large from position 63 on, 11 % from 127 on",
    "rows at positions from 63 on, odd layers",
    "position >= 63 and layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        if pipeline.target.windows[at.layer] is None:
            place = np.where(at.positions < pipeline.target.trash, at.positions, 0)
            scale = (1 + 0.1 * np.log(1 + (place + 1) // 64)).astype(np.float32)
            q = at.changed(q, lambda rows: rows * scale[:, None, None])
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, ATTEND, change)
