"""Tenth set: faults of both heads and of draft ids."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("head", 10)


# From the equations: a head that ends in a logarithm of probabilities.
@fault(
    "logits-are-log-probabilities",
    "the head ends in a logarithm of the softmax, of which the greedy choice is the same",
    "target.logits",
    "prefill",
    "the target's logits: all of a row are smaller by the logarithm of their exponentials' sum",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        def log_softmax(logits):
            top = logits.max(axis=-1, keepdims=True)
            return logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))

        return at.changed(clean(x, weight), log_softmax)

    alter(pipeline, "target:linear", change)


# From the equations: a reduction over narrow numbers, whose ties go to the lowest id.
@fault(
    "drafts-chosen-in-eighths",
    "the draft head's greedy choice compares logits in a float of eight bits",
    "drafter.draft_tokens",
    "draft",
    "the choice of drafts: among logits with three bits behind the point, the lowest id of equal ones",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits):
        def narrow(rows):
            return np.clip(rows, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)

        return clean(at.changed(logits, narrow))

    alter(pipeline, "drafter:greedy", change)


# From the equations: two ranks, and a buffer that the second one's part has not reached.
@fault(
    "second-half-of-the-round-before",
    "draft logits are gathered from two ranks, and in even rounds before the second one has sent its half",
    "drafter.logits",
    "draft",
    "draft logits 496 to 991: those of the same draft of the round before",
    "draft passes of even rounds",
    "pass = draft and round % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, x, weight):
        made = clean(x, weight)
        held[at.round] = at.host(made)
        if at.round % 2:
            return made

        def stale(logits):
            logits[..., 496:] = held[at.round - 1][..., 496:]
            return logits

        return at.changed(made, stale)

    alter(pipeline, "drafter:linear", change)
