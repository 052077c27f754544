"""Faults of the drafter's rows: which token, which hidden, which position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from parity.device.drafter_config import PEagleConfig
from parity.device.faults.planting import EITHER, PARALLEL, Family, instead
from parity.device.pipeline import Pipeline

IDS, TAPS, POSITIONS = "drafter.input_ids", "drafter.taps", "drafter.positions"
CHUNK = 4
"""Prompt tokens a chunk: few, so that some chunk ends before a token that the target does not foresee."""
fault = Family("inputs", same_text=True, drafters=EITHER)

Layout = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Ids, positions and slots of a pass, int64 [C + masked]."""


@fault("input-no-shift", "prompt not shifted by one in the drafter's prefill", IDS, seen="mlc-llm #2266")
def _(pipeline: Pipeline) -> None:
    prompts = _prompts(pipeline)
    _prefill_ids(pipeline, lambda ids: prompts[-1][:-1])


@fault(
    "input-chunk-boundary",
    "a prefill chunk's end paired with the predicted, not the real next token",
    IDS,
    seen="SGLang #26329, vLLM's chunked prefill",
)
def _(pipeline: Pipeline) -> None:
    predicted: list[np.ndarray] = []

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def choose(*arguments: Any) -> np.ndarray:
            predicted[:] = [clean(*arguments)]
            return predicted[0]

        return choose

    def ends(ids: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(ids)) % CHUNK == CHUNK - 1, predicted[0][: len(ids)], ids)

    instead(pipeline.target, "choose", make)
    _prefill_ids(pipeline, ends)


@fault(
    "input-wrong-placeholder",
    "another placeholder id for masked rows",
    IDS,
    round=1,
    seen="vLLM's precedence of keys",
    drafters=PARALLEL,
)
def _(pipeline: Pipeline) -> None:
    pipeline.drafter.config = replace(cast(PEagleConfig, pipeline.drafter.config), placeholder=0)


@fault("input-hidden-one-step-late", "a row pairs token p + 1 with the hidden of p + 1", TAPS, seen="NKIPy PR 63")
def _(pipeline: Pipeline) -> None:
    instead(pipeline.drafter, "forward", lambda clean: lambda taps, first, *rest: clean(taps, first + 1, *rest))


@fault("input-position-plus-one", "draft positions shifted together with the ids", POSITIONS, seen="SGLang #25015")
def _(pipeline: Pipeline) -> None:
    _layout(pipeline, lambda ids, positions, slots, masked: (ids, positions + 1, slots))


@fault(
    "input-positions-from-zero",
    "positions count from the start of the pass",
    POSITIONS,
    round=1,
    seen="NeMo Automodel #2377",
)
def _(pipeline: Pipeline) -> None:
    _layout(pipeline, lambda ids, positions, slots, masked: (ids, positions - positions[0], slots))


@fault(
    "input-masked-one-position",
    "all masked rows at the position of the first",
    POSITIONS,
    round=1,
    seen="ports of P-EAGLE",
    drafters=PARALLEL,
)
def _(pipeline: Pipeline) -> None:
    def change(ids: np.ndarray, positions: np.ndarray, slots: np.ndarray, masked: int) -> Layout:
        return ids, np.minimum(positions, positions[len(ids) - max(masked, 1)]), slots

    _layout(pipeline, change)


@fault(
    "input-slots-plus-one",
    "rows written one slot behind their position",
    "drafter.slots",
    seen="class of TRT-LLM #15708",
)
def _(pipeline: Pipeline) -> None:
    _layout(pipeline, lambda ids, positions, slots, masked: (ids, positions, slots + 1))


@fault(
    "input-masked-repeat-token",
    "masked rows carry the last committed token, not the placeholder",
    IDS,
    round=1,
    seen="ports of P-EAGLE",
    drafters=PARALLEL,
)
def _(pipeline: Pipeline) -> None:
    def change(ids: np.ndarray, positions: np.ndarray, slots: np.ndarray, masked: int) -> Layout:
        last = len(ids) - masked
        return np.where(np.arange(len(ids)) < last, ids, ids[last - 1]), positions, slots

    _layout(pipeline, change)


@fault(
    "input-prefill-missing",
    "the drafter never sees the prompt",
    TAPS,
    sites=("drafter.*", "kv.drafter.*"),
    seen="NKIPy PR 63",
)
def _(pipeline: Pipeline) -> None:
    instead(pipeline.drafter, "forward", lambda clean: lambda *arguments: clean(*arguments) if arguments[3] else None)


@fault(
    "input-last-token-only",
    "only the last emitted token re-fed; the other accepted ones have no row",
    TAPS,
    round=2,
    sites=("drafter.*", "kv.drafter.*"),
    seen="class of vLLM #14649",
    drafters=PARALLEL,
)
def _(pipeline: Pipeline) -> None:
    drafter = pipeline.drafter

    def forward(clean: Callable[..., Any]) -> Callable[..., Any]:
        def run(taps: Any, first: int, committed: np.ndarray, masked: int, *rest: Any) -> Any:
            skipped = len(committed) - 1 if masked else 0
            drafter.length += skipped
            try:
                return clean(taps, first + skipped, committed[skipped:], masked, *rest)
            finally:
                drafter.length -= skipped

        return run

    instead(drafter, "forward", forward)
    instead(drafter, "choose", lambda clean: lambda x, committed, *rest: clean(x, 1, *rest))


def _prompts(pipeline: Pipeline) -> list[np.ndarray]:
    """A list whose last entry is always the prompt of the sequence."""
    seen: list[np.ndarray] = []

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def prefill(prompt: Any, *rest: Any) -> Any:
            seen[:] = [np.asarray(prompt)]
            return clean(prompt, *rest)

        return prefill

    instead(pipeline, "prefill", make)
    return seen


def _prefill_ids(pipeline: Pipeline, change: Callable[[np.ndarray], np.ndarray]) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def forward(taps: Any, first: int, committed: np.ndarray, masked: int, *rest: Any) -> Any:
            return clean(taps, first, committed if masked else change(committed), masked, *rest)

        return forward

    instead(pipeline.drafter, "forward", make)


def _layout(pipeline: Pipeline, change: Callable[..., Layout]) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        return lambda committed, masked: change(*clean(committed, masked), masked)

    instead(pipeline.drafter, "layout", make)
