"""Faults of a block diffusion drafter: what its context is, what the block carries and sees, and which rows draft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from parity.device.dflash import DFlash
from parity.device.faults.planting import BLOCKS, Family, during, edit, every, instead
from parity.device.kernels.step import make_step
from parity.device.pipeline import Pipeline

IDS, POSITIONS, SLOTS = "drafter.input_ids", "drafter.positions", "drafter.slots"
TAPS, FUSED, FIRST = "drafter.taps", "drafter.fc_out", "kv.drafter.0.k"
ATTENTION, HIDDEN, TOKENS = "drafter.layers.0.attn_out", "drafter.pre_head_hidden", "drafter.draft_tokens"
CACHE = ("kv.drafter.*", "drafter.*")
fault = Family("block", same_text=True, round=1, drafters=BLOCKS)

Layout = tuple[np.ndarray, np.ndarray, np.ndarray]


@fault(
    "block-causal",
    "rows of the block do not see the rows behind them",
    ATTENTION,
    sites=("drafter.layers.*.attn_out",),
    seen="class of vLLM's causal backends",
)
def _(pipeline: Pipeline) -> None:
    _drafter(pipeline).make_step = make_step


@fault(
    "block-blind-to-context",
    "the block sees itself alone",
    ATTENTION,
    sites=("drafter.layers.*.attn_out",),
    seen="a cache that is not handed on",
)
def _(pipeline: Pipeline) -> None:
    _seen(pipeline, lambda seen, slots, rows: seen & (slots >= rows[0]))


@fault(
    "block-last-context-hidden",
    "the newest context row is hidden from the block",
    ATTENTION,
    sites=("drafter.layers.*.attn_out",),
    precision="float32",
    seen="off by one in a length",
)
def _(pipeline: Pipeline) -> None:
    _seen(pipeline, lambda seen, slots, rows: seen & (slots != rows[0] - 1))


@fault("block-taps-order", "taps concatenated from the last to the first", TAPS, round=0, seen="vLLM's sorted aux ids")
def _(pipeline: Pipeline) -> None:
    _numbers(pipeline, lambda taps: taps[::-1])


@fault(
    "block-taps-entering",
    "layers' inputs tapped in the place of their outputs",
    TAPS,
    round=0,
    seen="class of SGLang #25454",
)
def _(pipeline: Pipeline) -> None:
    _numbers(pipeline, lambda taps: tuple(tap - 1 for tap in taps))


@fault("block-taps-stale", "the context is the round before's once more", TAPS, round=2, seen="buffers not refreshed")
def _(pipeline: Pipeline) -> None:
    kept: list[Any] = []

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def draft(taps: Any, first: int, committed: np.ndarray, k: int, record: Any) -> np.ndarray:
            old = kept[-1] if kept and pipeline.drafter.length >= kept[-1][2] else (taps, first, 0)
            kept[:] = [(taps, first, pipeline.drafter.length)]
            return np.asarray(clean(old[0], old[1], committed, k, record))

        return draft

    instead(_drafter(pipeline), "draft", make)


@fault(
    "block-context-shifted",
    "each context row is the taps of the row behind it",
    TAPS,
    round=0,
    seen="EAGLE's pairing of tokens and taps",
)
def _(pipeline: Pipeline) -> None:
    instead(
        _drafter(pipeline),
        "shown_taps",
        lambda clean: lambda taps, first, *rest: clean(taps, first + 1, *rest),
    )


@fault(
    "block-fc-norm-skipped",
    "the fused taps are projected without their norm",
    FIRST,
    round=0,
    sites=CACHE,
    seen="class of EAGLE-3.1's fc_norm",
)
def _(pipeline: Pipeline) -> None:
    instead(_drafter(pipeline), "context", lambda clean: lambda fused: fused)


@fault(
    "block-context-by-layer-norm",
    "the context goes through each layer's input norm as the block does",
    FIRST,
    round=0,
    sites=CACHE,
    seen="ports of Qwen3 layers",
)
def _(pipeline: Pipeline) -> None:
    during(
        pipeline,
        "dflash:remember",
        lambda clean: (
            lambda context, step, weights, caches, config: clean(
                context * weights["input_norm"], step, weights, caches, config
            )
        ),
    )


@fault(
    "block-key-norm-missing",
    "keys are not normed by head",
    FIRST,
    round=0,
    sites=CACHE,
    seen="ports of Llama layers",
)
def _(pipeline: Pipeline) -> None:
    _ones(pipeline, "k_norm")


@fault("block-query-norm-missing", "queries' norm without its weight", ATTENTION, sites=("drafter.*",), seen="mlx-lm")
def _(pipeline: Pipeline) -> None:
    _ones(pipeline, "q_norm")


@fault("block-mask-token", "another token on the masks", IDS, sites=(IDS,), seen="class of NeMo Automodel #2447")
def _(pipeline: Pipeline) -> None:
    drafter = _drafter(pipeline)
    drafter.config = replace(drafter.config, mask=0)


@fault("block-mask-zero", "masks carry the last token again", IDS, sites=(IDS,), seen="blocks filled by repetition")
def _(pipeline: Pipeline) -> None:
    _block(pipeline, lambda ids: np.full_like(ids, ids[0]))


@fault("block-anchor-masked", "the last token's row carries a mask too", IDS, sites=(IDS,), seen="fully masked blocks")
def _(pipeline: Pipeline) -> None:
    _block(pipeline, lambda ids: np.full_like(ids, ids[-1]))


@fault(
    "block-anchor-early",
    "the last token but one begins the block",
    IDS,
    sites=(IDS,),
    seen="class of vLLM #14649",
)
def _(pipeline: Pipeline) -> None:
    _block(pipeline, lambda ids: np.concatenate([pipeline._text[-2:-1], ids[1:]]))


@fault("block-position-late", "the block one position further on", POSITIONS, seen="class of SGLang #25015")
def _(pipeline: Pipeline) -> None:
    _layout(pipeline, lambda positions, slots, others: (positions + (np.arange(len(positions)) >= others), slots))


@fault("block-position-still", "all rows of the block at its first position", POSITIONS, seen="static positions")
def _(pipeline: Pipeline) -> None:
    _layout(
        pipeline,
        lambda positions, slots, others: (np.minimum(positions, positions[0] + others), slots),
    )


@fault(
    "block-context-position",
    "context rows one position further on",
    POSITIONS,
    round=0,
    sites=(POSITIONS, *CACHE),
    seen="EAGLE's positions",
)
def _(pipeline: Pipeline) -> None:
    _layout(pipeline, lambda positions, slots, others: (positions + (np.arange(len(positions)) < others), slots))


@fault("block-slot-over-context", "the block overwrites the newest context row", SLOTS, seen="static cache indices")
def _(pipeline: Pipeline) -> None:
    _layout(pipeline, lambda positions, slots, others: (positions, slots - (np.arange(len(slots)) >= others)))


@fault(
    "block-kept",
    "the block's own rows stay in the cache as context",
    FIRST,
    sites=CACHE,
    gate="rollback",
    seen="MLPerf EDU scaffold",
)
def _(pipeline: Pipeline) -> None:
    _kept(pipeline, lambda before, drafts, emitted: before + len(emitted))


@fault(
    "block-rejected-kept",
    "all rows of the block stay as context, those of rejected drafts too",
    FIRST,
    sites=CACHE,
    gate="rollback",
    seen="class of mlx-lm #1109",
)
def _(pipeline: Pipeline) -> None:
    _kept(pipeline, lambda before, drafts, emitted: before + 1 + len(drafts))


@fault(
    "block-context-not-kept",
    "the round's context is rolled back with the block",
    FIRST,
    sites=CACHE,
    gate="rollback",
    seen="class of mlxcel #994",
)
def _(pipeline: Pipeline) -> None:
    drafter = _drafter(pipeline)
    _kept(pipeline, lambda before, drafts, emitted: drafter.length)


@fault("block-drafts-early", "drafts read one row early, from the last token's on", HIDDEN, seen="next-token heads")
def _(pipeline: Pipeline) -> None:
    _drafter(pipeline).drafting = lambda k: 1  # type: ignore[method-assign]


@fault("block-runner-up", "every draft is the second best", TOKENS, seen="sampling left on")
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        return lambda logits: np.argsort(np.asarray(logits, np.float32), axis=-1)[..., -2].astype(np.int32)

    during(pipeline, "drafter:greedy", make)


def _drafter(pipeline: Pipeline) -> DFlash:
    return cast(DFlash, pipeline.drafter)


def _numbers(pipeline: Pipeline, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> None:
    drafter = _drafter(pipeline)
    drafter.config = replace(drafter.config, taps=change(drafter.config.taps))


def _ones(pipeline: Pipeline, name: str) -> None:
    """This norm of every layer without its weight."""
    edit(_drafter(pipeline), name, np.ones_like, every(_drafter(pipeline)))


def _block(pipeline: Pipeline, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """`change(ids)` are the block's."""
    instead(_drafter(pipeline), "block", lambda clean: lambda committed, k: change(clean(committed, k)))


def _layout(pipeline: Pipeline, change: Callable[..., tuple[np.ndarray, np.ndarray]]) -> None:
    """`change(positions, slots, others)` of `others` context rows and the block behind them."""

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def layout(ids: np.ndarray, others: int) -> Layout:
            ids, positions, slots = clean(ids, others)
            return ids, *change(positions, slots, others)

        return layout

    instead(_drafter(pipeline), "layout", make)


def _kept(pipeline: Pipeline, change: Callable[..., int]) -> None:
    """`change(before, drafts, emitted)` rows stay in the drafter's cache; nothing asks whether they fit the taps."""
    instead(_drafter(pipeline), "kept", lambda clean: change)
    instead(pipeline, "_refuse_skipped", lambda clean: lambda count: None)


def _seen(pipeline: Pipeline, change: Callable[..., np.ndarray]) -> None:
    """`change(seen, slots, rows)`: which slots [span] the block sees, whose own are `rows`."""
    drafter = _drafter(pipeline)

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def step(rows: Any) -> Any:
            made = clean(rows)
            seen = np.array(drafter.engine.host(made.seen[None]))
            seen = change(seen, np.arange(made.span), rows.slots[0, : rows.count])
            return replace(made, seen={None: drafter.engine.array(seen)})

        return step

    instead(drafter, "step", make)
