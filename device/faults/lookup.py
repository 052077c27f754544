"""Faults of prompt lookup: which place is found, what is taken behind it, and of which text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from parity.device.faults.planting import LOOKUP, Family, instead
from parity.device.ngram import NGram
from parity.device.pipeline import Pipeline

fault = Family(
    "lookup",
    same_text=True,
    round=None,
    drafters=LOOKUP,
    sites=("drafter.draft_tokens", "target.*", "verify.*", "kv.*", "accept.*"),
)
TOKENS = "drafter.draft_tokens"


@fault("lookup-latest", "the latest place, not the earliest", TOKENS, seen="other engines' rule")
def _(pipeline: Pipeline) -> None:
    _place(pipeline, lambda found, text, size: found[-1:])


@fault("lookup-shortest-first", "the shortest n-gram that matches, not the longest", TOKENS, seen="loops from below")
def _(pipeline: Pipeline) -> None:
    drafter = _drafter(pipeline)

    def following(text: np.ndarray, k: int) -> np.ndarray:
        for size in range(drafter.config.shortest, min(drafter.config.longest, len(text) - 1) + 1):
            place = drafter.place(text, size)
            if place is not None:
                return text[place + size : place + size + k]
        return text[:0]

    instead(drafter, "following", lambda clean: following)


@fault(
    "lookup-matches-itself",
    "the text's end matches itself: nothing stands behind it",
    TOKENS,
    seen="windows without a bound",
)
def _(pipeline: Pipeline) -> None:
    def place(text: np.ndarray, size: int) -> int:
        return len(text) - size

    instead(_drafter(pipeline), "place", lambda clean: place)


@fault("lookup-one-late", "taken from one token behind", TOKENS, seen="off by one")
def _(pipeline: Pipeline) -> None:
    instead(_drafter(pipeline), "following", lambda clean: lambda text, k: clean(text, k + 1)[1:])


@fault("lookup-one-early", "the n-gram's own last token is the first draft", TOKENS, seen="off by one")
def _(pipeline: Pipeline) -> None:
    instead(_drafter(pipeline), "following", lambda clean: lambda text, k: _led(text, clean(text, k), k))


@fault(
    "lookup-prompt-alone", "the answer is not looked up in, the prompt alone", TOKENS, seen="prompt lookup by its name"
)
def _(pipeline: Pipeline) -> None:
    prompt = _prompt_length(pipeline)
    _place(pipeline, lambda found, text, size: found[found + size < prompt[0]])


@fault("lookup-answer-alone", "n-grams that reach into the prompt are not found", TOKENS, seen="histories per turn")
def _(pipeline: Pipeline) -> None:
    prompt = _prompt_length(pipeline)
    _place(pipeline, lambda found, text, size: found[found >= prompt[0]])


@fault("lookup-stale", "the last emitted token is not yet in the text", TOKENS, seen="histories updated after drafting")
def _(pipeline: Pipeline) -> None:
    instead(_drafter(pipeline), "due", lambda clean: lambda text, emitted: clean(text, emitted)[:-1])


@fault(
    "lookup-longest-ignored", "one token is looked up, whatever the longest is", TOKENS, seen="options not passed on"
)
def _(pipeline: Pipeline) -> None:
    drafter = _drafter(pipeline)
    drafter.config = replace(drafter.config, longest=drafter.config.shortest)


@fault("lookup-padded", "fewer than K tokens filled up with zeros", TOKENS, seen="static shapes")
def _(pipeline: Pipeline) -> None:
    def fill(tokens: np.ndarray, k: int) -> np.ndarray:
        return np.concatenate([tokens, np.zeros(k - len(tokens), tokens.dtype)])

    instead(_drafter(pipeline), "following", lambda clean: lambda text, k: fill(clean(text, k), k))


@fault("lookup-one-short", "one draft fewer than K", TOKENS, seen="off by one")
def _(pipeline: Pipeline) -> None:
    instead(_drafter(pipeline), "following", lambda clean: lambda text, k: clean(text, k - 1))


def _drafter(pipeline: Pipeline) -> NGram:
    return cast(NGram, pipeline.drafter)


def _prompt_length(pipeline: Pipeline) -> list[int]:
    """Holds the length of the prompt under way."""
    prompt = [0]

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def prefill(taps: Any, ids: np.ndarray, *rest: Any) -> None:
            prompt[0] = len(ids)
            clean(taps, ids, *rest)

        return prefill

    instead(_drafter(pipeline), "prefill", make)
    return prompt


def _led(text: np.ndarray, tokens: np.ndarray, k: int) -> np.ndarray:
    return np.concatenate([text[-1:], tokens])[:k] if len(tokens) else tokens


def _place(pipeline: Pipeline, choose: Callable[[np.ndarray, np.ndarray, int], np.ndarray]) -> None:
    """The first of `choose(places before the end, text, size)` is the place."""

    def place(text: np.ndarray, size: int) -> int | None:
        windows = sliding_window_view(text, size)
        found = choose(np.flatnonzero((windows[:-1] == windows[-1]).all(axis=1)), text, size)
        return int(found[0]) if len(found) else None

    instead(_drafter(pipeline), "place", lambda clean: place)
