"""Tenth set: faults of acceptance and of the rounds."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("the loop", 10)


# From the equations: a sum of agreements where their running product is meant.
@fault(
    "agreements-summed",
    "all drafts that agree are counted, those behind the first rejected one too",
    "accept.length",
    "commit",
    "acceptance: the number of drafts that agree anywhere, where that of their agreeing beginning is meant",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        agree = int((drafts == verified[:-1]).sum())
        return clean(np.where(np.arange(len(drafts)) < agree, verified[:-1], -1), verified)

    replaced(pipeline, pipeline, "accepted", change)


# From vLLM's chunked prefill: the last id of a chunk stands for the one behind it.
@fault(
    "first-draft-fed-the-prompt-end",
    "the first draft's committed row is given the prompt's last id, as the token behind it is not there yet",
    "drafter.input_ids",
    "draft",
    "id of the committed row: the prompt's last one, where the first token is meant",
    "the draft pass of round 1",
    "pass = draft and round = 1 and row = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, text, emitted):
        return text[-2:-1] if at.kind == "draft" and at.round == 1 else clean(text, emitted)

    replaced(pipeline, pipeline.drafter, "due", change)


# From the equations: a copy that is one token short, over a buffer that is not cleared.
@fault(
    "last-token-of-the-round-before",
    "tokens come out through one buffer, and from the second round on its copy is one token short",
    "accept.emitted",
    "commit",
    "the last emitted token of a round: what the round before had in its place",
    "rounds from the second on",
    "round >= 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified, record):
        before, last, taken = pipeline._emitted, pipeline.accepted(drafts, verified) - 1, verified.copy()
        if at.round >= 2 and last < len(before):
            taken[last] = before[last]
        return clean(drafts, taken, record)

    replaced(pipeline, pipeline, "_accept", change)
