"""Faults of a loop that sends rounds ahead of what it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from parity.device.asynchronous import Asynchronous
from parity.device.faults.planting import EITHER, PARALLEL, Family, during, instead
from parity.device.kernels.round import State

MADE_UP = "no report known: what such a loop can do wrong"
fault = Family("ahead", round=None, gate="loops", loop="asynchronous", drafters=EITHER)


@fault(
    "ahead-placeholder-drafted",
    "the drafter runs over placeholders in place of the tokens that the round before emitted",
    seen="class of vLLM #30122",
    same_text=True,
    drafters=PARALLEL,
)
def _(device: Asynchronous) -> None:
    mask = device.pipeline.drafter.config.placeholder

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        return lambda state, *rest: clean(replace(state, tokens=0 * state.tokens + mask), *rest)

    instead(device.pipeline.drafter, "on_device", make)


@fault(
    "ahead-placeholder-verified",
    "the last token of a round is a placeholder still where the next one verifies it",
    seen="class of vLLM #30122",
    drafters=PARALLEL,
)
def _(device: Asynchronous) -> None:
    mask = device.pipeline.drafter.config.placeholder
    _sent(device, lambda state, before: replace(state, tokens=0 * state.tokens + mask) if before else state)


@fault(
    "ahead-read-early",
    "a round's results are read before they are there: the count is its own, the tokens are the round's before",
    seen=MADE_UP,
)
def _(device: Asynchronous) -> None:
    def make(clean: Callable[[], np.ndarray]) -> Callable[[], np.ndarray]:
        held: list[np.ndarray] = []

        def take() -> np.ndarray:
            held.append(clean())
            early = held[-2:][0].copy() if len(held) > 1 else 0 * held[-1]
            early[:, -1] = held[-1][:, -1]
            return early

        return take

    instead(device, "take", make)


@fault(
    "ahead-buffers-swapped",
    "two buffers are swapped once too often: the newest round is read for the oldest",
    seen=MADE_UP,
)
def _(device: Asynchronous) -> None:
    instead(device, "take", lambda clean: lambda: device.engine.host(device.flying.pop()))


@fault("ahead-stale-length", "a round runs at the length that the round before began with", seen=MADE_UP)
def _(device: Asynchronous) -> None:
    _sent(device, lambda state, before: replace(state, length=before[-1].length) if before else state)


@fault(
    "ahead-stale-span",
    "attention ends at the last length that the host has read: what rounds in flight wrote is not seen",
    seen=MADE_UP,
)
def _(device: Asynchronous) -> None:
    known = [0]

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def read(*given: Any) -> Any:
            standing = clean(*given)
            known[0] = max(standing.lengths)
            return standing

        return read

    def begin(clean: Callable[..., Any]) -> Callable[..., Any]:
        def run(lanes: Any, *rest: Any) -> Any:
            known[0] = max(lane.target.length for lane in lanes)
            return clean(lanes, *rest)

        return run

    instead(device, "_read", make)
    instead(device, "_run", begin)
    instead(device, "_plan", lambda clean: lambda *given: replace(clean(*given), span=known[0] + device.pipeline.k + 1))


@fault("ahead-budget-not-counted", "a round may emit what the budget was behind the prefill", seen=MADE_UP)
def _(device: Asynchronous) -> None:
    _sent(device, lambda state, before: replace(state, left=before[0].left) if before else state)


def _sent(device: Asynchronous, change: Callable[[State, list[State]], State]) -> None:
    """Rounds are sent with `change(state, states sent before in this sequence)`."""
    before: list[State] = []

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def run(ends: Any, state: State, *rest: Any) -> Any:
            given = change(state, before)
            before.append(state)
            return clean(ends, given, *rest)

        return run

    def begin(clean: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            before.clear()
            return clean(*given)

        return run

    during(device, "asynchronous:speculated", make)
    instead(device, "_run", begin)
