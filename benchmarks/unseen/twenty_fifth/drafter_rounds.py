"""Faults of verify, accept and commit."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import altered
from parity.device.pipeline import Pipeline

fault = Part("verify, accept and commit", 25)
COUNT = "pipeline:emitted_length"


@fault(
    "first-draft-accepted-without-any-comparison",
    "the count of agreeing drafts starts at one: the first draft is not compared",
    "accept.length",
    "commit",
    "how many drafts agree where the first does not",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified, ends, budget):
        assumed = np.concatenate([verified[:, :1], drafts[:, 1:]], axis=1) if drafts.shape[1] else drafts
        return clean(assumed, verified, ends, budget)

    alter(pipeline, COUNT, change)


@fault(
    "verify-positions-lag-behind-full-accept",
    "behind a round that accepted all 4 drafts the rows of verify are rotated and masked one position early",
    "target.layers.0.q",
    "verify",
    "positions of verify rows, one too small",
    "verify passes behind a round that accepted all 4 drafts",
    "pass = verify and accepted = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, positions, *rest):
        return clean(ids, positions - (at.kind == "verify" and at.accepted == 4), *rest)

    alter(pipeline, "pipeline:pad_rows", change)


@fault(
    "verify-blind-in-freshly-begun-page",
    "verify rows do not see keys of a page of 16 that begins within their pass",
    "target.layers.0.attn_out",
    "verify",
    "mask of verify rows, keys of the page that the pass begins, in every layer",
    "verify rows in a later page of 16 than the first row of their pass",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        if at.kind == "verify":
            allowed, first = at.host(seen), pipeline.target.length
            allowed[..., (first // 16 + 1) * 16 :] = False
            seen = at.array(allowed, seen)
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, "kernels.target_layer:attend", change)


@fault(
    "bonus-behind-full-accept-repeats-draft",
    "where every draft is accepted the last of them is emitted again in place of the bonus token",
    "accept.emitted",
    "commit",
    "the bonus token",
    "rounds that accept every draft",
)
def _(pipeline: Pipeline) -> None:
    def change(emitted, drafts, tokens):
        if len(emitted) == len(drafts) + 1 and len(drafts):
            emitted[-1] = emitted[-2]
        return emitted

    altered(pipeline, "commit", "accept.emitted", change)


@fault(
    "rollback-scrubs-one-value-row-more",
    "a rollback to a multiple of 8 rows clears the last row that stays as well, in the target's value caches",
    "kv.target.0.v",
    "commit",
    "the target's values in the last committed row, in every layer",
    "commits that leave a multiple of 8 rows in the target's caches",
)
def _(pipeline: Pipeline) -> None:
    model = pipeline.target

    def change(at, clean, length):
        clean(length)
        if at.kind == "commit" and length % 8 == 0:

            def scrubbed(value):
                value[:, length - 1] = 0
                return value

            model.caches = [(keys, at.changed(values, scrubbed)) for keys, values in model.caches]

    replaced(pipeline, model, "rollback", change)


@fault(
    "budget-counts-first-token-once-more",
    "the token of the prefill is taken from the budget twice: the last round may emit one token less",
    "accept.length",
    "commit",
    "the budget of a round, one too small",
    "rounds that could emit all that is left of the budget",
)
def _(pipeline: Pipeline) -> None:
    alter(
        pipeline,
        COUNT,
        lambda at, clean, drafts, verified, ends, budget: clean(drafts, verified, ends, np.maximum(budget - 1, 1)),
    )
