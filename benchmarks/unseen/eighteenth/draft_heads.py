"""Faults of the rows that the draft head takes, and of its choice."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft heads", 18)
ROWS = 7


@fault(
    "head-reads-seven-rows",
    "the head's rows are gathered from the first 7 of a draft pass, a further one reads the seventh",
    "drafter.pre_head_hidden",
    "draft",
    "hidden of the last draft, that of the draft before",
    "last draft behind a round that accepted all 4 drafts",
    "pass = draft and accepted = 4 and row = 7",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, *rest):
        order = np.minimum(np.arange(x.shape[1]), ROWS - 1)
        return clean(at.changed(x, lambda value: value[:, order]), *rest)

    replaced(pipeline, pipeline.drafter, "choose", change)


@fault(
    "drafts-drawn-though-greedy",
    "drafts are drawn from the softmax of their logits at temperature 1, and compared as greedy ones",
    "drafter.draft_tokens",
    "draft",
    "choice of every draft, random",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits):
        draw = np.random.default_rng((18, at.prompt, at.round))
        return clean(at.changed(logits, lambda value: value + draw.gumbel(size=value.shape)))

    alter(pipeline, "drafter:greedy", change)
