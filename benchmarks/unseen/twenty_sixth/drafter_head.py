"""Faults of the draft head, of d2t, and of which rows draft."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft head", 26)


@fault(
    "last-draft-gathered-from-the-row-before",
    "the last draft of a pass is read from the row before its own",
    "drafter.pre_head_hidden",
    "draft",
    "row of the last draft",
    "the last draft of each pass",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, committed, k, *rest):
        last = committed + k - 2

        def repeated(value):
            value[:, last] = value[:, last - 1]
            return value

        return clean(at.changed(x, repeated) if k > 1 else x, committed, k, *rest)

    replaced(pipeline, pipeline.drafter, "choose", change)


@fault(
    "draft-logits-of-the-tail-tile-are-the-tile-before",
    "the draft logits of columns 896 to 991, behind the last full tile of 128, are those of columns 768 to 863",
    "drafter.logits",
    "draft",
    "draft logits 896 to 991",
)
def _(pipeline: Pipeline) -> None:
    def repeated(value):
        value[..., 896:] = value[..., 768:864]
        return value

    alter(pipeline, "drafter:linear", lambda at, clean, *given: at.changed(clean(*given), repeated))


@fault(
    "d2t-offsets-kept-in-an-unsigned-byte",
    "d2t is kept as uint8: offsets from 256 on lose 256",
    "drafter.draft_tokens",
    "draft",
    "d2t's offsets from 256 on",
    "drafts whose offset in d2t is 256 or more",
)
def _(pipeline: Pipeline) -> None:
    outer, engine = pipeline.drafter.outer, pipeline.engine
    narrow = engine.host(outer["d2t"]).astype(np.uint8).astype(np.int32)
    outer["d2t"] = engine.array(narrow, outer["d2t"].dtype)
