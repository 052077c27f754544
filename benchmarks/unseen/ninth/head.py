"""Ninth set: faults of the target's head."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("head", 9)


# From the equations: a setting of another family, as for attention's scores.
@fault(
    "logits-softly-capped",
    "the target's logits are capped by 30 tanh(x / 30), a setting of another family of models",
    "target.logits",
    "prefill",
    "the target's logits: small ones stay, one of 20 becomes 17.5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        return at.changed(clean(x, weight), lambda logits: 30 * np.tanh(logits / np.float32(30)))

    alter(pipeline, "target:linear", change)


# Of the class of https://github.com/mirage-project/mirage/issues/752: a reduction in two steps, by tiles of ids.
@fault(
    "tile-of-the-row-before",
    "the greedy choice is reduced in tiles of 256 ids, and a verify row adds its place to the tile of the row before",
    "verify.tokens",
    "verify",
    "the chosen id of a verify row: its place in its own tile of 256, in the tile that the row before chose",
    "verify rows but the first whose best id lies in another tile of 256 than that of the row before",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits):
        def shift(ids):
            ids[:, 1:] = ids[:, :-1] // 256 * 256 + ids[:, 1:] % 256
            return ids

        made = clean(logits)
        return at.changed(made, shift) if at.kind == "verify" else made

    alter(pipeline, "target:greedy", change)


# After https://github.com/vllm-project/vllm/issues/42744, the other way round: a processor of the bonus row alone.
@fault(
    "bonus-row-penalised",
    "a presence penalty of 1 that no request asks for is taken off the bonus row's logits",
    "verify.logits",
    "verify",
    "logits of ids that the text holds: smaller by 1",
    "the last row of verify passes, ids that the text holds",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        made = clean(x, weight)

        def penalise(logits):
            logits[0, pipeline.k, np.unique(pipeline._text)] -= 1
            return logits

        return at.changed(made, penalise) if at.kind == "verify" else made

    alter(pipeline, "target:linear", change)
