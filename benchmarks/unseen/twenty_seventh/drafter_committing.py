"""Faults of acceptance, of what a commit keeps, and of rollbacks."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import altered
from parity.device.pipeline import Pipeline

fault = Part("accept and commit", 27)
PAGE = 8


@fault(
    "no-mismatch-counts-as-first-row",
    "the first mismatch is the place of the least flag, which is 0 where all drafts agree: none is accepted",
    "accept.length",
    "commit",
    "number of accepted drafts",
    "rounds in which the target agrees with every draft",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        return 1 if len(drafts) and np.array_equal(drafts, verified[:-1]) else clean(drafts, verified)

    replaced(pipeline, pipeline, "accepted", change)


@fault(
    "correction-from-row-behind-mismatch",
    "the token behind the accepted drafts is taken from the verify row behind the one it belongs to",
    "accept.emitted",
    "commit",
    "row of the correction",
)
def _(pipeline: Pipeline) -> None:
    def change(value, drafts, verified):
        if 0 < len(value) < len(verified):
            value[-1] = verified[len(value)]
        return value

    altered(pipeline, "commit", "accept.emitted", change)


@fault(
    "target-keeps-two-rows-at-least",
    "a rollback keeps the row of one draft at the least, also where none was accepted",
    "kv.target.0.k",
    "commit",
    "length of the target's cache behind a rollback",
    "rounds that accept no draft",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target

    def change(at, clean, length):
        none = at.kind == "commit" and length == target.length + 1
        return clean(length + none)

    replaced(pipeline, target, "rollback", change)


@fault(
    "accepted-values-gathered-from-first-row",
    "in layers from 4 on a commit gathers the values of accepted drafts from the pass's first row",
    "kv.target.4.v",
    "commit",
    "values of accepted drafts in the target's caches of layers 4 to 7",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target

    def change(at, clean, length):
        before = target.length
        clean(length)
        if at.kind != "commit":
            return

        def gathered(value):
            value[:, before + 1 : length] = value[:, before : before + 1]
            return value

        target.caches = [
            (keys, at.changed(values, gathered) if layer >= 4 else values)
            for layer, (keys, values) in enumerate(target.caches)
        ]

    replaced(pipeline, target, "rollback", change)


@fault(
    "drafter-page-freed-when-just-full",
    "a rollback that ends at the end of a page of 8 rows frees that page as well: its rows are cleared",
    "kv.drafter.0.k",
    "commit",
    "last page of the drafter's caches, every layer",
    "commits behind which the drafter's cache holds a multiple of 8 rows",
)
def _(pipeline: Pipeline) -> None:
    drafter = pipeline.drafter

    def change(at, clean, length):
        clean(length)
        if at.kind != "commit" or length % PAGE:
            return

        def freed(value):
            value[:, length - PAGE : length] = 0
            return value

        drafter.caches = [tuple(at.changed(one, freed) for one in pair) for pair in drafter.caches]

    replaced(pipeline, drafter, "rollback", change)
