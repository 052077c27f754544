"""What is static in a round that runs as one program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parity.device.config import TargetConfig
from parity.device.kernels.round import Parts, State


@dataclass(frozen=True)
class Plan:
    """A round of K drafts of one pair, of which the host knows an upper bound of the length.

    Args:
        k: K; 0 for plain decoding.
        trash: the slot of padding, in both caches.
        span: cache rows that a pass sees.
        target: the target's config.
        windows: of the target's layers.
        taps: in_of numbers.
        drafter: the config of its family.
        draft: drafts int32 [B, K] of a state and the drafter's arrays.
        run_over: the drafter's rows of accepted drafts stay.
    """

    k: int
    trash: int
    span: int
    target: TargetConfig
    windows: tuple[int | None, ...]
    taps: tuple[int, ...] = ()
    drafter: Any = None
    draft: Callable[[State, Parts, Plan], Any] | None = None
    run_over: bool = False
