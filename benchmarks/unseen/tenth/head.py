"""Tenth set: faults of both heads and of draft ids."""

from __future__ import annotations

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


# From the equations: the map the other way round, an offset that leads from the target's ids to the draft's.
@fault(
    "offset-taken-off",
    "the offset of d2t is taken off a draft id, as if it led to the draft's vocabulary; what is below 0 becomes 0",
    "drafter.draft_tokens",
    "draft",
    "draft ids: the offset of d2t is subtracted",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, draft_ids, d2t):
        own = at.host(draft_ids)
        return at.array(np.maximum(2 * own - at.host(clean(draft_ids, d2t)), 0), draft_ids)

    alter(pipeline, "drafter:to_target_ids", change)


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
