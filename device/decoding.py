"""The host loop of speculative decoding, over the verbs of the seam."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from parity.seam import Tap

if TYPE_CHECKING:
    from parity.device.pipeline import Pipeline


@dataclass
class Generation:
    """What one run emitted, and how.

    Args:
        tokens: all emitted ids, the first token of prefill included.
        acceptance_lengths: tokens emitted by each verify round, the bonus included.
        accepted_drafts: drafts among them.
    """

    tokens: list[int] = field(default_factory=list)
    acceptance_lengths: list[int] = field(default_factory=list)
    accepted_drafts: list[int] = field(default_factory=list)

    def take(self, drafts: np.ndarray, emitted: np.ndarray) -> None:
        """Count a round in."""
        # Emitted tokens are the agreeing drafts and one more, unless the cut took that one away.
        agreed = np.append(drafts[: len(emitted)] == emitted[: len(drafts)], False)
        self.tokens += emitted.tolist()
        self.acceptance_lengths.append(len(emitted))
        self.accepted_drafts.append(int(np.argmin(agreed)))


def generate(pipeline: Pipeline, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap | None = None) -> Generation:
    """Prefill and rounds until an end token or the budget."""
    run = Generation([pipeline.prefill(prompt_ids, max_new_tokens, tap)])
    while not pipeline.finished:
        drafts = pipeline.draft(tap)
        run.take(drafts, pipeline.commit(drafts, pipeline.verify(drafts, tap), tap))
    return run
