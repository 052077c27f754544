"""Third set: faults of which keys the target's rows meet."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target attention", 3)
ATTEND = "kernels.target_layer:attend"
RING = 35
"""Slots of the ring: a window of 32, and room for three rows more."""
TURN_END = 1268
"""Ends a message of the chat."""


@fault(
    "ring-one-slot-short",
    "a sliding layer's ring has 35 slots: the fifth verify row takes the slot of the first one's oldest key",
    "target.layers.0.attn_out",
    "verify",
    "oldest key and value of the window in even layers",
    "row 0 of verify passes, even layers",
    "pass = verify and row = 0 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, *rest):
        if at.layer % 2 == 0 and at.kind == "verify":
            last = int(at.positions[-1])

            def overwritten(value):
                value[:, last - RING] = value[:, last]
                return value

            keys, values = (at.changed(one, overwritten) for one in (keys, values))
        return clean(q, keys, values, *rest)

    alter(pipeline, ATTEND, change)


@fault(
    "turn-end-taken-for-padding",
    "keys of the token that ends a turn, 1268, are masked as padding in layer 2",
    "target.layers.2.attn_out",
    "prefill",
    "mask of layer 2, keys of token 1268",
    "rows that have a token 1268 in their window, layer 2",
    "layer = 2",
)
def _(pipeline: Pipeline) -> None:
    tokens = np.zeros(pipeline.target.positions + 1, np.int64)

    def note(at, clean, rows):
        tokens[rows.slots[0]] = rows.ids[0]
        return clean(rows)

    def change(at, clean, q, keys, values, seen, sinks):
        def padded(value):
            return value & (tokens[: value.shape[-1]] != TURN_END)

        return clean(q, keys, values, at.changed(seen, padded) if at.layer == 2 else seen, sinks)

    replaced(pipeline, pipeline.target, "embedded", note)
    alter(pipeline, ATTEND, change)
