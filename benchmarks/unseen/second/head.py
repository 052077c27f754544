"""Second set: faults of the target's ends, the embedding and the head."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("embedding and head", 2)
TRASH = 512
"""The slot of padding."""


@fault(
    "final-squares-rounded",
    "the final norm rounds each square to bfloat16 before it adds them",
    "target.pre_head_hidden",
    "prefill",
    "mean square of the final norm",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        wide = at.host(x)
        mean = np.square(wide).astype(bfloat16).astype(np.float32).mean(axis=-1, keepdims=True)
        return at.array(wide / np.sqrt(mean + eps) * at.host(weight), x)

    alter(pipeline, "target:gpt_oss_norm", change)


@fault(
    "embedding-rows-modulo-128",
    "prefill rows from 128 on embed the ids of the rows 128 before",
    "target.embed",
    "prefill",
    "ids of prefill rows from 128 on",
    "prefill rows from 128 on",
    "pass = prefill and row >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, table):
        return clean(at.changed(ids, lambda value: value[:, np.arange(value.shape[1]) % 128]), table)

    alter(pipeline, "target:embed", change)


@fault(
    "upper-half-without-norm-weight",
    "logits of ids from 640 on are of a hidden that the final norm's weight did not multiply",
    "target.logits",
    "prefill",
    "input of the lm head, ids from 640 on",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        bare = at.changed(x, lambda value: value / at.host(pipeline.target.outer["norm"]))
        upper = at.host(clean(bare, weight))[..., 640:]
        return at.changed(clean(x, weight), lambda value: np.concatenate([value[..., :640], upper], axis=-1))

    alter(pipeline, "target:linear", change)


@fault(
    "tokens-of-the-tile-before",
    "the greedy ids of a prefill's last partial tile of 32 rows are those of the tile before",
    "target.tokens",
    "prefill",
    "greedy ids of the last partial tile of 32 rows",
    "prefill rows behind the last whole tile of 32",
    "pass = prefill",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits):
        made = clean(logits)
        count = int((at.positions < TRASH).sum())
        first = count - count % 32
        if at.kind != "prefill" or not 0 < first < count:
            return made

        def stale(value):
            value[:, first:count] = value[:, first - 32 : count - 32].copy()
            return value

        return at.changed(made, stale)

    alter(pipeline, "target:greedy", change)
