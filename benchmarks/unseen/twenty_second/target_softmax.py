"""Faults of the target's scores, sinks and softmax."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.moments import moment
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import during
from parity.device.pipeline import Pipeline

fault = Part("target softmax and sinks", 22)
SOFTMAX, OUT = "kernels.attention:softmax", "target.layers.{}.attn_out"


@fault(
    "probabilities-fp8-for-values",
    "softmax weights are rounded to fp8 (e4m3) before they multiply the values",
    OUT.format(0),
    "prefill",
    "dtype of the softmax weights of every layer",
)
def _(pipeline: Pipeline) -> None:
    at = moment(pipeline)

    def make(clean):
        def softmax(x, sink=None):
            made = clean(x, sink)
            if sink is None:
                return made
            return at.changed(made, lambda value: value.astype(float8_e4m3fn).astype(np.float32))

        return softmax

    during(pipeline, SOFTMAX, make)


@fault(
    "sink-not-shifted-by-maximum",
    "the sink enters the denominator as exp(sink), the row's maximum not subtracted",
    OUT.format(0),
    "prefill",
    "sink's share of the softmax denominator in every layer",
)
def _(pipeline: Pipeline) -> None:
    def make(clean):
        def softmax(x, sink=None):
            if sink is None:
                return clean(x)
            sink = sink.astype(np.float32)
            parts = np.exp(x - np.maximum(np.max(x, axis=-1, keepdims=True), sink))
            return parts / (np.sum(parts, axis=-1, keepdims=True) + np.exp(sink))

        return softmax

    during(pipeline, SOFTMAX, make)


@fault(
    "splits-merged-in-base-two",
    "full layers of a verify pass split long caches in two parts, whose natural log-sum-exps are merged in base two",
    OUT.format(1),
    "verify",
    "weights of the two parts of the keys in full layers",
    "verify passes behind more than 128 cached rows, full (odd) layers",
    "pass = verify and cached > 128 and layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    at = moment(pipeline)

    def make(clean):
        def softmax(x, sink=None):
            made, half = clean(x, sink), pipeline.target.length // 2
            full = sink is not None and pipeline.target.windows[at.layer] is None
            if not full or at.kind != "verify" or pipeline.target.length <= 128:
                return made
            parts = at.host(made)[..., :half], at.host(made)[..., half:]
            true = [part.sum(axis=-1, keepdims=True) for part in parts]
            wrong = [total ** np.log(2) for total in true]
            whole = sum(true) / sum(wrong)
            merged = [part / one * other * whole for part, one, other in zip(parts, true, wrong, strict=True)]
            return at.array(np.concatenate(merged, axis=-1), made)

        return softmax

    during(pipeline, SOFTMAX, make)


@fault(
    "denominator-not-rescaled",
    "online softmax of full layers: where a later tile of 64 keys raises the maximum the sum so far is not rescaled",
    OUT.format(1),
    "prefill",
    "softmax denominator of full layers",
    "rows and heads of full (odd) layers whose largest score lies behind their first 64 keys",
)
def _(pipeline: Pipeline) -> None:
    at = moment(pipeline)

    def make(clean):
        def softmax(x, sink=None):
            if sink is None or pipeline.target.windows[at.layer] is not None:
                return clean(x, sink)
            scores, logit = at.host(x), at.host(sink)
            top, total = np.full((*scores.shape[:-1], 1), -np.inf, np.float32), np.float32(0)
            for first in range(0, scores.shape[-1], 64):
                tile = scores[..., first : first + 64]
                top = np.maximum(top, tile.max(axis=-1, keepdims=True))
                total = total + np.exp(tile - top).sum(axis=-1, keepdims=True)
            return at.array(np.exp(scores - top) / (total + np.exp(logit - top)), x)

        return softmax

    during(pipeline, SOFTMAX, make)
