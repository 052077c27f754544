"""Faults of acceptance and of the bonus token."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.planting import Part
from parity.device.faults.planting import altered, during, instead
from parity.device.pipeline import Pipeline

fault = Part("acceptance", 26)


@fault(
    "accepted-run-never-longer-than-three",
    "a round accepts three drafts at the most, whatever K is",
    "accept.length",
    "commit",
    "accepted length of longer runs",
    "rounds in which four or more drafts agree",
)
def _(pipeline: Pipeline) -> None:
    instead(pipeline, "accepted", lambda clean: lambda drafts, verified: min(clean(drafts, verified), 4))


@fault(
    "bonus-token-read-from-the-last-verify-row",
    "the token behind the accepted drafts is that of the last verify row, not that of the first rejected draft's",
    "accept.emitted",
    "commit",
    "last emitted token of rounds that reject a draft",
)
def _(pipeline: Pipeline) -> None:
    altered(pipeline, "commit", "accept.emitted", lambda emitted, drafts, tokens: np.append(emitted[:-1], tokens[-1:]))


@fault(
    "drafts-compared-with-the-verify-row-behind",
    "a draft is compared with what the target chose behind it, not with what it chose in its place",
    "accept.length",
    "commit",
    "verify row that a draft is compared with: one late",
)
def _(pipeline: Pipeline) -> None:
    def make(clean):
        def late(drafts, verified, *rest):
            return clean(drafts, np.concatenate([verified[:, 1:], verified[:, -1:]], axis=1), *rest)

        return late

    during(pipeline, "pipeline:emitted_length", make)
