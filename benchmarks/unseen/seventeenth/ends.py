"""Faults of the target's embeddings and head."""

from __future__ import annotations

from benchmarks.unseen.moments import moment, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("embedding and head", 17)
TAIL = 96
"""Rows of three whole tiles of 32."""


@fault(
    "head-tied-to-the-embeddings",
    "the target's head is the transposed embedding table, lm_head.weight is not read",
    "target.logits",
    "prefill",
    "head of the target",
)
def _(pipeline: Pipeline) -> None:
    outer, at = pipeline.target.outer, moment(pipeline)
    outer["head"] = at.array(at.host(outer["embed"]).T, outer["head"])


@fault(
    "tile-tail-keeps-the-prompt-before",
    "from the second prompt on the tile of 32 prefill rows from 96 on keeps the embeddings of the prompt before",
    "target.embed",
    "prefill",
    "embeddings of rows from 96 on",
    "prefill rows from 96 on, from the second prompt on",
    "prompt > 1 and pass = prefill and row >= 96",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, rows):
        made = clean(rows)
        if at.kind != "prefill":
            return made
        before = held.get("rows")
        held["rows"] = at.host(made)

        def stale(value):
            last = min(value.shape[1], before.shape[1])
            value[:, TAIL:last] = before[:, TAIL:last]
            return value

        return made if before is None else at.changed(made, stale)

    replaced(pipeline, pipeline.target, "embedded", change)
