"""Faults of a chain drafter: what a chain row is made of, where it sits, and what is left of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from parity.device.chain import Chain
from parity.device.eagle3 import Eagle3
from parity.device.faults.planting import CHAIN, STEPS, Family, instead
from parity.device.kernels.norm import llama_norm
from parity.device.pipeline import Pipeline

IDS, POSITIONS, SLOTS = "drafter.input_ids", "drafter.positions", "drafter.slots"
FUSED, ATTENTION, HIDDEN = "drafter.fc_out", "drafter.layers.0.attn_out", "drafter.pre_head_hidden"
fault = Family("chain", same_text=True, round=1, drafters=CHAIN)

Layout = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Ids, positions and slots of a pass, int64 [rows]."""


@fault("chain-recycles-post-norm", "the final norm's output recycled, not the stream", FUSED, seen="EAGLE-3 ports")
def _(pipeline: Pipeline) -> None:
    drafter = _chain(pipeline)
    norm = drafter.outer["norm"]
    _recycled(drafter, lambda clean, x, row: llama_norm(clean(x, row), norm, drafter.config.eps))


@fault(
    "chain-recycles-first-row",
    "the first committed row's stream recycled, not the last one's",
    FUSED,
    round=2,
    seen="class of NKIPy PR 63",
)
def _(pipeline: Pipeline) -> None:
    _recycled(_chain(pipeline), lambda clean, x, row: clean(x, 1))


@fault(
    "chain-recycles-once",
    "every chain row takes the first one's hidden again",
    FUSED,
    seen="loops that forget to update",
)
def _(pipeline: Pipeline) -> None:
    kept: list[Any] = []

    def change(clean: Callable[..., Any], x: Any, row: int) -> Any:
        if x.shape[1] > 1 or not kept:
            kept[:] = [clean(x, row)]
        return kept[0]

    _recycled(_chain(pipeline), change)


@fault(
    "chain-position-still",
    "chain rows stay at the position of the first",
    POSITIONS,
    drafters=STEPS,
    seen="NeMo Automodel #2377",
)
def _(pipeline: Pipeline) -> None:
    _layout(pipeline, lambda ids, positions, slots, done, first: (ids, np.minimum(positions, first), slots))


@fault(
    "chain-position-late",
    "chain rows one position further on",
    POSITIONS,
    drafters=STEPS,
    seen="class of SGLang #25015",
)
def _(pipeline: Pipeline) -> None:
    _layout(pipeline, lambda ids, positions, slots, done, first: (ids, positions + bool(done), slots))


@fault(
    "chain-slot-still",
    "every chain row overwrites the one before it",
    SLOTS,
    drafters=STEPS,
    seen="static cache indices",
)
def _(pipeline: Pipeline) -> None:
    _layout(pipeline, lambda ids, positions, slots, done, first: (ids, positions, np.minimum(slots, first)))


@fault(
    "chain-draft-ids",
    "draft-vocabulary ids fed back in the place of target ids",
    IDS,
    seen="class of NeMo Automodel #2447",
)
def _(pipeline: Pipeline) -> None:
    drafter = _chain(pipeline)
    offsets = drafter.engine.host(drafter.outer["d2t"]).astype(np.int64)
    own = {int(draft + offset): int(draft) for draft, offset in enumerate(offsets)}
    _layout(
        pipeline,
        lambda ids, positions, slots, done, first: (
            np.array([own.get(int(token), int(token)) for token in ids]) if done else ids,
            positions,
            slots,
        ),
    )


@fault(
    "chain-last-token-again",
    "chain rows carry the last emitted token, not the draft",
    IDS,
    drafters=STEPS,
    seen="loops that forget to update",
)
def _(pipeline: Pipeline) -> None:
    _layout(
        pipeline,
        lambda ids, positions, slots, done, first: (pipeline._emitted[-1:] if done else ids, positions, slots),
    )


@fault(
    "chain-blind-to-itself",
    "chain rows do not see the chain rows before them",
    ATTENTION,
    sites=(ATTENTION,),
    seen="class of tree masks",
)
def _(pipeline: Pipeline) -> None:
    blind_to_itself(pipeline)


def blind_to_itself(pipeline: Pipeline) -> None:
    """Chain rows see the committed rows and themselves."""
    drafter = cast(Chain, pipeline.drafter)

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def step(rows: Any) -> Any:
            made = clean(rows)
            if rows.count != 1 or rows.width != 1:
                return made
            behind = np.arange(made.span)
            own = int(rows.positions[0, 0])
            seen = (behind <= pipeline.target.length - drafter.ahead) | (behind == own)
            mask = drafter.engine.array(np.broadcast_to(seen, made.seen[None].shape))
            return replace(made, seen={None: np.logical_and(made.seen[None], mask)})

        return step

    instead(drafter, "step", make)


@fault(
    "chain-rows-kept",
    "accepted chain rows stay in the cache, their tokens are not run over again",
    "drafter.taps",
    round=2,
    sites=("drafter.*", "kv.drafter.*"),
    seen="class of vLLM #14649",
)
def _(pipeline: Pipeline) -> None:
    drafter = _chain(pipeline)

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def draft(taps: Any, first: int, committed: np.ndarray, k: int, record: Any) -> np.ndarray:
            kept = len(committed) - 1
            drafter.length += kept
            try:
                return np.asarray(clean(taps, first + kept, committed[kept:], k, record))
            finally:
                drafter.length -= kept

        return draft

    instead(drafter, "draft", make)


def _chain(pipeline: Pipeline) -> Eagle3:
    return cast(Eagle3, pipeline.drafter)


def _recycled(drafter: Eagle3, change: Callable[..., Any]) -> None:
    """`change(clean, x, row)` is what the next chain row takes for a hidden."""
    instead(drafter, "recycled", lambda clean: lambda x, row: change(clean, x, row))


def _layout(pipeline: Pipeline, change: Callable[..., Layout]) -> None:
    """`change(ids, positions, slots, done, first)`: `first` is the position of the round's first chain row."""
    drafter, begun = cast(Chain, pipeline.drafter), [0]

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def layout(ids: np.ndarray, done: int) -> Layout:
            if not done:
                begun[0] = drafter.length + len(ids)
                return cast(Layout, clean(ids, done))
            return change(*clean(ids, done), done, begun[0])

        return layout

    instead(drafter, "layout", make)
