"""A round that was sampled, with the logits behind it and the numbers that decided it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parity.compare.sampling.oracle import processed
from parity.compare.vocabulary import DraftVocabulary
from parity.seam import DRAWS, Sampling

UNDECIDED = -1
"""In place of a token behind the first rejected draft."""


@dataclass(frozen=True)
class SampledRound:
    """A round and what decided it; round 0 is the prefill, with one row and no drafts.

    Args:
        drafts: n ids.
        tokens: n+1 ids, what `verify` returned.
        draft_logits: [n, VD]; None of a drafter without.
        logits: [n+1, V].
        uniforms: [4, K+1].
        emitted: what `commit` returned, and what it should have; nothing of the prefill.
    """

    prompt: int
    round: int
    drafts: np.ndarray
    tokens: np.ndarray
    draft_logits: np.ndarray | None
    logits: np.ndarray
    uniforms: np.ndarray
    emitted: tuple[Sequence[int], Sequence[int]] = ((), ())

    def uniform(self, what: str, row: int) -> float:
        """The number for one decision."""
        return float(self.uniforms[DRAWS.index(what), row])

    def p(self, settings: Sampling, slack: float = 0.0) -> np.ndarray:
        """The target's distribution [n+1, V]."""
        return processed(self.logits, settings, slack)

    def q(self, settings: Sampling, vocabulary: DraftVocabulary, slack: float = 0.0) -> np.ndarray:
        """What the drafts were to be drawn from, over the target's vocabulary [n, V]."""
        q = np.zeros((len(self.drafts), self.logits.shape[1]))
        if self.draft_logits is None:
            q[np.arange(len(q)), self.drafts] = 1
        else:
            q[:, vocabulary.tokens] = processed(self.draft_logits, settings, slack)
        return q

    @property
    def decided(self) -> int:
        """Rows in which anything was decided: all, or those up to the first rejected draft where all others are -1."""
        behind = self.tokens[self.kept + 1 :]
        return self.kept + 1 if (behind == UNDECIDED).all() else len(self.tokens)

    @property
    def kept(self) -> int:
        """How many drafts were accepted."""
        return int(np.cumprod(self.tokens[:-1] == self.drafts).sum())
