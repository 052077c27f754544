"""Faults of the drafter's final norm, its head, the choice of drafts and the map to target ids."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("drafter head", 23)


@fault(
    "head-last-tile-stale",
    "the last, shorter tile of the head's columns holds columns of the tile before",
    "drafter.logits",
    "draft",
    "columns 896 to 991 of the drafter's head: those of 768 to 863",
)
def _(pipeline: Pipeline) -> None:
    def stale(value):
        value[:, 896:] = value[:, 768:864].copy()
        return value

    rewritten(pipeline, pipeline.drafter.outer, "head", stale)


@fault(
    "final-norm-mean-over-padded-lanes",
    "the drafter's final norm divides the sum of squares by the padded width 128, not by 96",
    "drafter.pre_head_hidden",
    "draft",
    "root mean square of the drafter's final norm, too small by sqrt(96 / 128)",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        return at.changed(clean(x, weight, eps * 128 / 96), lambda value: value * np.sqrt(128 / 96))

    alter(pipeline, "drafter:llama_norm", change)


@fault(
    "masked-drafts-read-one-row-early",
    "every draft but the first is read one row early: the second from the last committed row again",
    "drafter.pre_head_hidden",
    "draft",
    "rows that the head reads for the drafts behind the first",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, outer, eps, tap):
        def early(value):
            value[:, 1:] = value[:, :-1].copy()
            return value

        return clean(at.changed(x, early), outer, eps, tap)

    alter(pipeline, "drafter:choose", change)


@fault(
    "d2t-offsets-in-one-byte",
    "offsets of d2t are kept in one unsigned byte: those above 255 lose 256",
    "drafter.draft_tokens",
    "draft",
    "d2t entries above 255",
    "drafts whose offset in d2t is above 255",
)
def _(pipeline: Pipeline) -> None:
    outer = pipeline.drafter.outer
    outer["d2t"] = moment(pipeline).changed(outer["d2t"], lambda value: value % 256)


@fault(
    "masked-argmax-over-first-tile",
    "the greedy choice of masked rows looks at the first 512 draft ids alone",
    "drafter.draft_tokens",
    "draft",
    "choice of every draft but the first: ids from 512 on are left out",
    "drafts behind the first whose best draft id is 512 or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits):
        def cut(value):
            value[:, 1:, 512:] = -1e30
            return value

        return clean(at.changed(logits, cut))

    alter(pipeline, "drafter:greedy", change)
