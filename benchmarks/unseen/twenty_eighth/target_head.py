"""The target's head and the rows of a verify pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("head of the target", 28)


@fault(
    "head-tile-loaded-twice",
    "the head's fifth tile of 128 columns is loaded from where the sixth lies",
    "target.logits",
    "prefill",
    "the head's columns 512 to 639, those of 640 to 767",
)
def _(pipeline: Pipeline) -> None:
    def change(weight: np.ndarray) -> np.ndarray:
        weight[:, 512:640] = weight[:, 640:768]
        return weight

    rewritten(pipeline, pipeline.target.outer, "head", change)


@fault(
    "odd-verify-rows-half-stale",
    "the second half of the vocabulary is gathered for pairs of verify rows, with the first row's logits for both",
    "verify.logits",
    "verify",
    "logits of ids of 640 and more, those of the row before",
    "odd rows of a verify pass",
    "pass = verify and row % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, x: Any, weight: Any) -> Any:
        made = clean(x, weight)
        if at.kind != "verify":
            return made

        def paired(value: np.ndarray) -> np.ndarray:
            rows = np.arange(value.shape[1])
            return np.concatenate([value[..., :640], value[:, rows - rows % 2, 640:]], axis=-1)

        return at.changed(made, paired)

    alter(pipeline, "target:linear", change)


@fault(
    "argmax-without-the-offset-of-its-half",
    "the greedy choice over two halves of the vocabulary gives the winner's place in its own half",
    "target.tokens",
    "prefill",
    "greedy ids, without the offset of their half",
    "rows whose greedy id is 640 or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, logits: Any) -> Any:
        return at.changed(clean(logits), lambda ids: ids % 640)

    alter(pipeline, "target:greedy", change)
