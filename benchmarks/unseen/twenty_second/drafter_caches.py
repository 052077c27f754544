"""Faults of both caches, and of what one prompt leaves to the next."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 22)
PAGE = 16


@fault(
    "layer-3-keys-bound-to-layer-2",
    "layer 3 of the drafter keeps its keys in the cache of layer 2, and overwrites those there",
    "kv.drafter.2.k",
    "prefill",
    "keys in layer 2's cache of the drafter, which are layer 3's",
)
def _(pipeline: Pipeline) -> None:
    drafter = pipeline.drafter

    def change(at, clean, *given):
        clean(*given)
        drafter.caches = [*drafter.caches[:3], (drafter.caches[2][0], drafter.caches[3][1])]

    replaced(pipeline, drafter, "clear", change)
    replaced(pipeline, drafter, "rollback", change)


@fault(
    "shared-prefix-one-row-long",
    "the drafter keeps its rows of what two prompts begin with, the last of which is paired with the old next token",
    "drafter.layers.0.attn_out",
    "prefill",
    "keys and values of the last shared row, in every layer",
    "prompts behind the first one, from the last row on that they share with the prompt before",
    "prompt > 1",
)
def _(pipeline: Pipeline) -> None:
    prompts, kept = [[], []], {}

    def prefill(at, clean, prompt, *rest):
        prompts[:] = [prompts[1], list(prompt)]
        return clean(prompt, *rest)

    def change(at, part, rows, slots):
        if at.kind == "prefill":
            old, kept[at.layer, part] = kept.get((at.layer, part)), rows.copy()
            equal = [one == other for one, other in zip(*prompts, strict=False)]
            last = equal.index(False) - 1 if False in equal else -1
            if old is not None and last >= 0:
                rows = rows.copy()
                rows[:, last] = old[:, last]
        return rows, slots

    replaced(pipeline, pipeline, "prefill", prefill)
    writing(pipeline, "drafter", change)


@fault(
    "new-page-freed-on-commit",
    "a page of 16 rows that a verify pass began is freed with the rejected drafts, accepted rows in it too",
    "kv.target.0.k",
    "commit",
    "accepted rows of the target's caches in the page behind that of the round's first row: cleared",
    "rounds whose accepted rows reach into another page of 16 rows",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target

    def change(at, clean, length):
        page = (target.length // PAGE + 1) * PAGE
        clean(length)
        if at.kind == "commit" and page < length:
            for one in (one for pair in target.caches for one in pair):
                one[:, page:length] = at.array(np.zeros((1, 1, 1, 1), np.float32), one)

    replaced(pipeline, target, "rollback", change)
