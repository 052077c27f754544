"""Twelfth set: faults of the draft head and of what follows it."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft head", 12)


# Of the class of https://github.com/tenstorrent/tt-metal/pull/38881: a head that is padded on each rank.
@fault(
    "padding-gathered-with-the-logits",
    "three ranks have 331 draft ids each, padded to 336, and logits are gathered with their padding and cut at 992",
    "drafter.logits",
    "draft",
    "draft logits: ids from 336 on have those of the id 5 before, from 672 on of the id 10 before; 331 to 335 and 667 "
    "to 671 have 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        def gather(rows):
            made = np.zeros_like(rows)
            for rank in range(3):
                mine = rows[..., 331 * rank : 331 * (rank + 1)]
                room = made[..., 336 * rank : 336 * rank + mine.shape[-1]]
                room[:] = mine[..., : room.shape[-1]]
            return made

        return at.changed(clean(x, weight), gather)

    alter(pipeline, "drafter:linear", change)


# Of the class of https://github.com/NVIDIA/TensorRT-Model-Connect/pull/1157: threads that have every so-manieth id.
@fault(
    "lanes-number-ids-in-runs",
    "four lanes choose among every fourth draft id, and the winner's place is counted as if each had a run of them",
    "drafter.draft_tokens",
    "draft",
    "draft ids: id j becomes 248 (j mod 4) + j div 4",
)
def _(pipeline: Pipeline) -> None:
    alter(pipeline, "drafter:greedy", lambda at, clean, x: at.changed(clean(x), lambda ids: ids % 4 * 248 + ids // 4))


# Of the class of https://github.com/verl-project/verl-SpeCo/pull/67: a table of offsets, and where it begins.
@fault(
    "offsets-begin-an-entry-late",
    "d2t is stored behind an entry of its own, and offsets are read from there: each is that of the draft id before",
    "drafter.draft_tokens",
    "draft",
    "d2t: each draft id has the offset of the draft id before",
    "drafts whose offset differs from that of the draft id before, tokens 25 and 900 among them",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, offsets):
        return clean(ids, at.changed(offsets, lambda value: np.concatenate([value[:1], value[:-1]])))

    alter(pipeline, "drafter:to_target_ids", change)
