"""Faults of the acceptance rule and of its stop at the budget."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("acceptance", 19)
LENGTH = "accept.length"


@fault(
    "accept-counts-from-one",
    "the loop over drafts begins at the second: the first one counts as accepted",
    LENGTH,
    "commit",
    "number of accepted drafts where the first one is wrong",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        return clean(np.append(verified[:1], drafts[1:]) if len(drafts) else drafts, verified)

    replaced(pipeline, pipeline, "accepted", change)


@fault(
    "bonus-row-clamped-to-drafts",
    "where every draft is accepted the bonus is read from verify row K - 1, as if there were a row a draft",
    "accept.emitted",
    "commit",
    "bonus token, the last draft once more",
    "rounds that accept all 4 drafts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified, *rest):
        if len(drafts) and pipeline.accepted(drafts, verified) > len(drafts):
            verified = np.append(verified[:-1], verified[-2])
        return clean(drafts, verified, *rest)

    replaced(pipeline, pipeline, "_accept", change)


@fault(
    "one-token-a-round-near-budget",
    "where fewer than K + 1 tokens are left of the budget, a round emits one token and drops its accepted drafts",
    LENGTH,
    "commit",
    "number of emitted tokens",
    "rounds with fewer than 5 tokens left that accept a draft",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        made = clean(drafts, verified)
        return min(made, 1) if pipeline.left <= pipeline.k else made

    replaced(pipeline, pipeline, "accepted", change)
