"""Faults of commit, rollback and of the caches' end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from parity.device.faults.planting import EITHER, Family, during, instead
from parity.device.model import Model
from parity.device.pipeline import Pipeline

# A row that is missing cannot be forced: a local comparison shows it once more in the next round's attention.
DRAFTED, COMMITTED = ("kv.drafter.*", "drafter.layers.*.attn_out"), ("kv.target.*", "target.layers.*.attn_out")
fault = Family("rollback", round=1, sites=DRAFTED, same_text=True, drafters=EITHER)
commit = Family("commit", round=2, same_text=True, drafters=EITHER)
boundary = Family("boundary", round=None, gate="boundary", same_text=True)
FIRST = "kv.drafter.0.k"


@fault("rollback-wrong-axis", "the drafter's rollback slices the kv-head axis", FIRST, seen="NKIPy PR 63")
def _(pipeline: Pipeline) -> None:
    drafter, rejected = pipeline.drafter, pipeline.k - 1

    def rollback(length: int) -> None:
        for cache in (one for pair in drafter.caches for one in pair):
            cache[:, :, cache.shape[2] - min(rejected, cache.shape[2] - 1) :] = np.zeros((), np.float32)
        drafter.length = length

    instead(drafter, "rollback", lambda clean: rollback)


@fault(
    "rollback-noop", "the drafter's placeholder rows stay in its cache", FIRST, seen="MLPerf EDU scaffold, mlx-lm #1109"
)
def _(pipeline: Pipeline) -> None:
    _lengths(pipeline, pipeline.drafter, lambda clean: lambda length: _keep(pipeline.drafter, length + pipeline.k - 1))


@fault("rollback-too-far", "the drafter drops an accepted row too", FIRST, seen="mlxcel #994")
def _(pipeline: Pipeline) -> None:
    _lengths(pipeline, pipeline.drafter, lambda clean: lambda length: clean(length - 1))


@fault("rollback-reset", "the drafter's cache cleared instead of rolled back", FIRST, seen="aprender #2014")
def _(pipeline: Pipeline) -> None:
    _lengths(pipeline, pipeline.drafter, lambda clean: lambda length: pipeline.drafter.clear())


@fault(
    "rollback-values-further",
    "values rolled back one row further than keys",
    "kv.drafter.0.v",
    sites=("kv.drafter.*.v",),
    seen="class of mlxcel #994",
)
def _(pipeline: Pipeline) -> None:
    drafter = pipeline.drafter

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def rollback(length: int) -> None:
            clean(length)
            for _, values in drafter.caches:
                values[:, length - 1 :] = np.zeros((), np.float32)

        return rollback

    instead(drafter, "rollback", make)


@fault(
    "rollback-target-noop",
    "rejected rows stay in the target's cache",
    "kv.target.0.k",
    round=None,
    sites=COMMITTED,
    same_text=False,
    seen="mlx-lm #1109",
)
def _(pipeline: Pipeline) -> None:
    _lengths(
        pipeline,
        pipeline.target,
        lambda clean: lambda length: _keep(pipeline.target, pipeline.target.length + pipeline.k + 1),
    )


@fault(
    "rollback-target-too-far",
    "an accepted row dropped from the target's cache",
    "kv.target.0.k",
    sites=COMMITTED,
    same_text=False,
    seen="mlxcel #994",
)
def _(pipeline: Pipeline) -> None:
    _lengths(pipeline, pipeline.target, lambda clean: lambda length: clean(length - 1))


@fault(
    "rollback-target-contents",
    "the target's last accepted row cleared, the length right",
    "kv.target.0.k",
    sites=("kv.target.*.[kv]",),
    same_text=False,
    seen="class of mlxcel #994",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def rollback(length: int) -> None:
            clean(length - 1)
            pipeline.target.length = length

        return rollback

    instead(pipeline.target, "rollback", make)


@commit(
    "commit-stale-placeholder",
    "rows written from placeholders are never overwritten by true hiddens",
    "drafter.layers.0.attn_out",
    sites=DRAFTED,
    seen="vLLM #14649 (8-15 %)",
)
def _(pipeline: Pipeline) -> None:
    drafter = pipeline.drafter
    filled: dict[int, int] = {}
    instead(drafter, "rollback", lambda clean: lambda length: _keep(drafter, length))

    def make(clean: Any) -> SimpleNamespace:
        def write(cache: Any, rows: Any, slots: Any) -> None:
            at = drafter.engine.host(slots)[0]
            if not at.min():
                filled.pop(id(cache), None)
            fresh = np.flatnonzero(at >= filled.get(id(cache), 0))
            filled[id(cache)] = max(filled.get(id(cache), 0), *(1 + at[at < drafter.trash]))
            clean.write(cache, rows[:, fresh], slots[:, fresh])

        return SimpleNamespace(write=write)

    during(pipeline, "kernels.drafter_layer:cache", make)


@boundary(
    "commit-cache-short", "the drafter's cache 16 rows shorter than the target's: its end overrun", seen="rMLX #14"
)
def _(pipeline: Pipeline) -> None:
    drafter = pipeline.drafter
    last = drafter.positions - 17

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def layout(committed: np.ndarray, masked: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            ids, positions, slots = clean(committed, masked)
            return ids, positions, np.minimum(slots, last)

        return layout

    instead(drafter, "layout", make)


@boundary("boundary-transient-slots", "admission leaves no room for the transient draft rows", seen="openinfer #454")
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def admit(*arguments: Any) -> Any:
            drafts, pipeline.k = pipeline.k, 0
            try:
                return clean(*arguments)
            finally:
                pipeline.k = drafts

        return admit

    instead(pipeline, "_admit", make)


@boundary(
    "boundary-padded-rows",
    "all rows of a pass written as one slice with its padding; near the end the slice moves back to fit",
    seen="class of NKIPy's max-width padding, TRT-LLM #15708",
)
def _(pipeline: Pipeline) -> None:
    rows = pipeline.drafter.positions

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def pad_rows(*arguments: Any) -> Any:
            padded = clean(*arguments)
            start = max(min(int(padded.slots[0, 0]), rows - padded.width), 0)
            slots = np.minimum(start + np.arange(padded.width, dtype=np.int32), rows)
            return replace(padded, slots=slots[None])

        return pad_rows

    during(pipeline, "drafter:pad_rows", make)


def _keep(model: Model, length: int) -> None:
    model.length = length


def _lengths(pipeline: Pipeline, model: Model, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """A wrong length, in a device that does not notice that its two models part."""
    instead(model, "rollback", make)
    instead(pipeline, "_refuse_skipped", lambda clean: lambda count: None)
