"""Faults of the caches: layout, span, rollback."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import instead
from parity.device.kernels.cache import rollback
from parity.device.pipeline import Pipeline
from parity.device.rows import round_up

fault = Part("caches and rollback", 26)


@fault(
    "value-heads-exchanged-in-last-layers-cache",
    "layer 3 of the drafter writes the values of kv heads 1 and 2 into each other's place",
    "drafter.layers.3.attn_out",
    "prefill",
    "kv heads 1 and 2 in the values of the drafter's layer 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        return (rows[:, :, [0, 2, 1, 3]] if part == "v" and at.layer == 3 else rows), slots

    writing(pipeline, "drafter", change)


@fault(
    "draft-span-rounded-without-its-own-rows",
    "the span of a draft pass is the cached length rounded up to 16: rows that it writes behind that are not seen",
    "drafter.layers.0.attn_out",
    "draft",
    "keys of the pass behind the rounded cached length",
    "rows of draft passes at or behind the next multiple of 16 from the cached length on",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        made = clean(rows)
        if at.kind != "draft":
            return made
        reached = np.arange(made.span) < round_up(int(rows.positions[0, 0]), 16)
        return replace(made, seen={window: seen & reached for window, seen in made.seen.items()})

    replaced(pipeline, pipeline.drafter, "step", change)


@fault(
    "rollback-clears-a-row-more-in-drafter-layer-2",
    "the drafter's rollback clears the last row that stays in layer 2",
    "kv.drafter.2.k",
    "commit",
    "last row of the keys and values of the drafter's layer 2",
)
def _(pipeline: Pipeline) -> None:
    drafter = pipeline.drafter

    def make(clean):
        def roll(length):
            clean(length)
            shorter = drafter.engine.array(np.array([length - 1]))
            drafter.caches[2] = tuple(rollback(one, shorter) for one in drafter.caches[2])

        return roll

    instead(drafter, "rollback", make)


@fault(
    "full-last-page-freed-with-the-rejected-rows",
    "a rollback to a multiple of 16 frees the target's page that has just become full",
    "kv.target.0.k",
    "commit",
    "the last 16 rows of the target's keys and values",
    "commits that leave a multiple of 16 rows in the target's cache",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target

    def make(clean):
        def roll(length):
            clean(length)
            if length % 16 == 0:
                for one in (one for pair in target.caches for one in pair):
                    one[:, length - 16 : length] = target.engine.zeros((1, 1, 1, 1), target.cache_dtype)

        return roll

    instead(target, "rollback", make)
