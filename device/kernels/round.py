"""What a round leaves for the next one, computed where it runs: rows, lengths, budgets, ends.

A sequence that is over (`left` is 0) has no rows: they sit at position 0 and write the trash slot, and nothing of its
state changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parity.device.kernels.accept import emitted_length, matching


@dataclass(frozen=True)
class State:
    """Where B sequences stand between two rounds.

    Args:
        tokens: int32 [B, K+1], what the target chose in the last round; the first `count` came out.
        count: int32 [B], 1 to K+1; behind a prefill 1.
        length: int32 [B], rows of the target's cache; the last token has none yet.
        cached: int32 [B], rows of the drafter's.
        left: int32 [B], tokens that may still come out.
        taps: [B, K+1, T * H of the target] of the tokens' pass; None for a drafter without.
    """

    tokens: Any
    count: Any
    length: Any
    cached: Any
    left: Any
    taps: Any = None

    @property
    def live(self) -> Any:
        """Which sequences are not over: bool [B]."""
        return self.left > 0


@dataclass(frozen=True, eq=False)
class Parts:
    """The arrays of a model: weights outside its layers and of each, keys and values of each layer, cos and sin.

    They stay the same ones as long as this lives; what they hold may change.
    """

    outer: dict[str, Any]
    layers: list[dict[str, Any]]
    caches: list[tuple[Any, ...]]
    tables: tuple[Any, Any]


@dataclass(frozen=True)
class PassRows:
    """Ids, positions and slots of one pass, each int32 [B, W]."""

    ids: Any
    positions: Any
    slots: Any


def placed(ids: Any, first: Any, count: Any, live: Any, trash: int) -> PassRows:
    """The first `count` [B] of ids [B, W] from position `first` [B] on; slots are positions, the rest is padding."""
    row = np.arange(ids.shape[1], dtype=np.int32)
    used = np.logical_and(row < count[:, None], live[:, None])
    positions = first[:, None] + row
    return PassRows(*(np.where(used, one, fill) for one, fill in ((ids, 0), (positions, 0), (positions, trash))))


def last(tokens: Any, count: Any, width: int = 1) -> Any:
    """The last `width` of the first `count` [B] of tokens [B, n]: int32 [B, width]; in front of the first it again."""
    place = count[:, None] - width + np.arange(width, dtype=np.int32)
    return np.take_along_axis(tokens, np.maximum(place, 0), axis=1)


def followed(tokens: Any, count: Any, width: int, mask: int) -> Any:
    """The first `count` [B] of tokens [B, n], and masks behind them: int32 [B, width]."""
    row = np.arange(width, dtype=np.int32)
    held = np.take_along_axis(tokens, np.minimum(row, tokens.shape[1] - 1) + 0 * count[:, None], axis=1)
    return np.where(row < count[:, None], held, mask)


def committed(state: State, drafts: Any, verified: Any, taps: Any, ends: Any, run_over: bool) -> tuple[State, Any]:
    """Accept, and the state behind it; the tokens that came out, int32 [B].

    Args:
        drafts: int32 [B, K].
        verified: int32 [B, K+1].
        ends: int32 [n], the end tokens.
        run_over: the drafter's rows of accepted drafts stay, as it ran over them.
    """
    length = emitted_length(drafts, verified, ends, state.left)
    final = last(verified, length)
    ended = np.any(final[:, :, None] == ends, axis=-1)[:, 0]
    kept = state.length
    if run_over:
        kept = kept + np.minimum(np.minimum(matching(drafts, verified), drafts.shape[1] - 1) + 1, length)
    live = state.live
    return State(
        tokens=np.where(live[:, None], verified, state.tokens),
        count=np.where(live, length, state.count),
        length=state.length + length,
        cached=np.where(live, kept, state.cached),
        left=np.where(ended, 0, state.left - length),
        taps=taps,
    ), length


def moved(state: State, tokens: Any, ends: Any) -> State:
    """The state behind a step of plain decoding, whose tokens [B, 1] the target chose."""
    ended = np.any(tokens[:, :, None] == ends, axis=-1)[:, 0]
    step = state.live.astype(np.int32)
    left = np.where(ended, 0, state.left - step)
    kept = np.where(state.live[:, None], tokens, state.tokens)
    return replace(state, tokens=kept, length=state.length + step, left=left)
