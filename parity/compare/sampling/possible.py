"""Which tokens a row of a sampled round can emit by its numbers, from any logits within rounding of those that are
shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import exp, expm1

import numpy as np

from parity.compare.sampling.oracle import processed, residual
from parity.compare.sampling.round import SampledRound
from parity.compare.scores import NOISE_SIGMAS
from parity.compare.vocabulary import DraftVocabulary
from parity.seam import Sampling

WIDEST = 0.5
"""By which share the edges of top-p and min-p are moved at the most."""

LEAST = 2.0**-24
"""What a residual's weights sum to at the least, as float32 has it."""


@dataclass(frozen=True)
class RowOutcomes:
    """What one row of a round may come to.

    Args:
        seen: the round, with logits of the same text up to this row.
        target, drafter: what rounding moves their logits by, RMS.
    """

    seen: SampledRound
    row: int
    settings: Sampling
    vocabulary: DraftVocabulary
    target: float
    drafter: float

    def __contains__(self, outcome: object) -> bool:
        """Whether a token can be emitted, as an accepted draft or not: (token, accepted)."""
        return outcome in {*self.all()}

    def all(self) -> Iterator[tuple[int, bool]]:
        """Every one; where drafts have to match, a token that is drawn may be one."""
        p = [*_variants(lambda some, slack: self.seen.p(some, slack)[self.row], self.settings, self._of_target)]
        if self.settings.rule == "match" or self.row >= len(self.seen.drafts):
            for token in _drawn(p, self.seen.uniform("target", self.row), self._of_target):
                yield from ((token, accepted) for accepted in (False, True))
            return
        q = [*_variants(self._proposed, self.settings, self._of_drafter)]
        both, uniform = self._of_target + self._of_drafter, self.seen.uniform("accept", self.row)
        for draft in self._drafts():
            chances = [float(one[draft] / two[draft]) if two[draft] > 0 else np.inf for one in p for two in q]
            if uniform <= max(chances) * exp(both):
                yield draft, True
            if uniform >= min(min(chances), 1.0) * exp(-both):
                rest = max(float(np.maximum(p[0] - q[0], 0).sum()), LEAST)
                left = [residual(one, two) for one in p for two in q]
                for token in _drawn(left, self.seen.uniform("replace", self.row), both / rest):
                    yield token, False

    def _proposed(self, settings: Sampling, slack: float) -> np.ndarray:
        return np.asarray(self.seen.q(settings, self.vocabulary, slack)[self.row])

    def _drafts(self) -> list[int]:
        """Drafts that this row may have."""
        logits = self.seen.draft_logits
        if logits is None:
            return [int(self.seen.drafts[self.row])]
        own = [
            *_variants(lambda some, slack: processed(logits[self.row], some, slack), self.settings, self._of_drafter)
        ]
        columns = _drawn(own, self.seen.uniform("draft", self.row), self._of_drafter)
        return [int(self.vocabulary.tokens[column]) for column in columns]

    @property
    def _of_target(self) -> float:
        return NOISE_SIGMAS * self.target / self.settings.temperature

    @property
    def _of_drafter(self) -> float:
        if self.seen.draft_logits is None:
            return 0.0
        return NOISE_SIGMAS * self.drafter / self.settings.temperature


def _variants(of: Callable[[Sampling, float], np.ndarray], settings: Sampling, noise: float) -> Iterator[np.ndarray]:
    """The distributions [V] behind edges where they are, and where noise may move them."""
    slack = min(expm1(noise), WIDEST)
    yield of(settings, 0.0)
    if settings.top_p < 1 or settings.min_p > 0:
        yield from (of(settings, by) for by in (slack, -slack))
    if settings.top_k > 1:
        yield from (of(replace(settings, top_k=settings.top_k + by), 0.0) for by in (1, -1))


def _drawn(weights: list[np.ndarray], uniform: float, noise: float) -> list[int]:
    """The tokens for which a number may stand: of whose cells the edges come to it within what noise moves sums by.

    A sum F of some weights p moves by noise times the root of the sum of (p (1 - F))^2 of these and (p F)^2 of the
    others, where each logit moves alone.
    """
    found: set[int] = set()
    for one in weights:
        sums, squares = np.cumsum(one), np.cumsum(one**2)
        moved = noise * np.sqrt(squares * (1 - sums) ** 2 + np.maximum(squares[-1] - squares, 0) * sums**2) + LEAST
        low, off = np.append(0.0, sums[:-1]), np.append(0.0, moved[:-1])
        found |= {*np.flatnonzero((one > 0) & (low - off <= uniform) & (uniform <= sums + moved)).tolist()}
    return sorted(found)
