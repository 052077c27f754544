"""The target's rotary embedding."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("rotary embedding of the target", 28)


@fault(
    "rope-concentration-on-cosines-only",
    "the concentration multiplies the cosines and not the sines",
    "target.layers.0.q",
    "prefill",
    "the sine table, without YaRN's magnitude",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target
    cos, sin = target.tables
    target.tables = cos, sin / target.rope.magnitude


@fault(
    "verify-queries-at-first-position",
    "all queries of a verify pass are rotated at the position of its first row",
    "target.layers.0.q",
    "verify",
    "the rotation of the queries, at another row's position",
    "rows of a verify pass behind its first",
    "pass = verify and row > 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, x: Any, cos: Any, sin: Any) -> Any:
        if at.kind != "verify" or x.shape[2] != pipeline.target.config.attention.heads:
            return clean(x, cos, sin)
        first = np.zeros(x.shape[1], np.int32)
        return clean(x, np.take(cos, first, axis=1), np.take(sin, first, axis=1))

    alter(pipeline, "kernels.target_layer:rotate", change)


@fault(
    "keys-one-behind-after-rejection",
    "a round that accepted no draft leaves the key rotation's position counter one behind",
    "target.layers.0.k",
    "verify",
    "the rotation of the keys, one position too early",
    "the round before accepted no draft",
    "accepted = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, x: Any, cos: Any, sin: Any) -> Any:
        if at.kind != "verify" or at.accepted != 0 or x.shape[2] != pipeline.target.config.attention.kv_heads:
            return clean(x, cos, sin)
        earlier = np.maximum(at.positions - 1, 0)[None]
        return clean(x, *(np.take(table, earlier, axis=0) for table in pipeline.target.tables))

    alter(pipeline, "kernels.target_layer:rotate", change)
