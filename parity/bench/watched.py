"""A device decodes once more with somebody watching, untimed: what gates judge is what a bench times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parity.bench.decoding import ByLoop, ByVerbs, Prompts, Sequenced
from parity.seam import Looping

Watched = Callable[[Prompts, int], dict[str, Sequenced]]
"""The prompts of a group and a budget to each one's tokens and rounds."""


class _Watching:
    """The tap of a gate that looks at every stage: nothing on it says that stages need not be handed over."""

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        return value

    def ranks(self, stage: str, shards: Sequence[np.ndarray], sharding: str) -> Sequence[np.ndarray]:
        """Ranks that differ continue so."""
        return shards


def watched(device: Any, drafts: bool) -> Watched:
    """Decoding by verbs, with drafts or without; a loop in one piece whole, with its own."""
    tap = _Watching()
    run = ByLoop(device, tap=tap) if isinstance(device, Looping) else ByVerbs(device, drafts=drafts, tap=tap)
    return lambda prompts, budget: run(prompts, budget).sequences
