"""Eleventh set: a fault of the target's embeddings."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("embedding", 11)


# After https://github.com/vllm-project/vllm/pull/57356: draft rows that are not marked as tokens.
@fault(
    "drafts-embedded-as-the-prompt",
    "draft rows of a verify pass are not marked as tokens, and keep what the buffer of embeddings has from the prompt",
    "target.embed",
    "verify",
    "embedding of verify rows 1 to 4: those of the same rows of the prompt; row 0 is right",
    "verify rows but the first",
    "pass = verify and row >= 1",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, rows):
        if at.kind == "prefill":
            held["prompt"] = rows.ids
        if at.kind != "verify":
            return clean(rows)
        ids = rows.ids.copy()
        ids[0, 1 : rows.count] = held["prompt"][0, 1 : rows.count]
        return clean(replace(rows, ids=ids))

    replaced(pipeline, pipeline.target, "embedded", change)
