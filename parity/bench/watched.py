"""A device decodes once more with somebody watching, untimed: what gates judge is what a bench times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parity.bench.decoding import ByLoop, ByVerbs, Prompts
from parity.seam import Looping

Watched = Callable[[Prompts, int], dict[str, list[int]]]
"""The prompts of a group and a budget to each one's tokens."""


class _Watching:
    """The tap of a gate that looks at every stage: nothing on it says that stages need not be handed over."""

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        return value

    def ranks(self, stage: str, shards: Sequence[np.ndarray], sharding: str) -> Sequence[np.ndarray]:
        """Ranks that differ continue so."""
        return shards


def watched(device: Any) -> Watched:
    """Plain decoding by verbs; a loop in one piece whole, with its drafts."""
    tap = _Watching()
    run = ByLoop(device, tap=tap) if isinstance(device, Looping) else ByVerbs(device, drafts=False, tap=tap)

    def tokens(prompts: Prompts, budget: int) -> dict[str, list[int]]:
        return {name: one.tokens for name, one in run(prompts, budget).sequences.items()}

    return tokens
