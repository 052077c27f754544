"""Sampled tokens against the target's own distribution, by position, and accepted drafts against what is due."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from parity.compare.sampling.oracle import accepted
from parity.compare.sampling.round import SampledRound
from parity.compare.vocabulary import DraftVocabulary
from parity.seam import Sampling

ERROR_RATE = 1e-6
"""Of each assertion, at any number of samples: the bound below is no asymptotic one."""
POSITIONS = 3
"""Positions in a round that are told apart; what is further back counts with the last one."""


@dataclass
class Counts:
    """Samples by position in the round.

    Attributes:
        ranks: where each emitted token lies in its row's cumulative distribution, likeliest token first, uniform in
            [0, 1) if it was drawn from that; the token's own share is passed at random.
        accepted: of each round that came so far, whether the draft was accepted, and the probability of that.
    """

    ranks: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    accepted: dict[int, list[tuple[bool, float]]] = field(default_factory=lambda: defaultdict(list))

    def add(
        self, seen: SampledRound, settings: Sampling, vocabulary: DraftVocabulary, random: np.random.Generator
    ) -> None:
        """Count what came of a round."""
        p = seen.p(settings)
        emitted = len(seen.emitted[0]) if seen.round else 1
        for row in range(min(seen.kept + 1, emitted)):
            self.ranks[min(row, POSITIONS - 1)].append(rank(p[row], int(seen.tokens[row]), random))
        if len(seen.drafts):
            q = seen.q(settings, vocabulary)
            due = q * (accepted(p[:-1], q) if settings.rule == "residual" else p[:-1])
            for row in range(min(seen.kept + 1, len(seen.drafts))):
                self.accepted[min(row, POSITIONS - 1)].append((row < seen.kept, float(due[row].sum())))

    def lines(self) -> Iterator[CountLine]:
        """Each assertion."""
        for place, ranks in sorted(self.ranks.items()):
            yield CountLine(f"tokens, position {_named(place)}", len(ranks), _distance(ranks), _bound(len(ranks)))
        for place, pairs in sorted(self.accepted.items()):
            came, due = np.mean(np.array(pairs, np.float64), axis=0)
            what = f"drafts accepted, position {_named(place)}: {came:.3f}, due {due:.3f}"
            yield CountLine(what, len(pairs), abs(float(came - due)), _bound(len(pairs)))


@dataclass(frozen=True)
class CountLine:
    """One assertion.

    Attributes:
        off: the largest difference of two shares.
        bound: beyond it with probability `ERROR_RATE` at the most; a bias of that size is seen every other time.
    """

    what: str
    samples: int
    off: float
    bound: float

    def __str__(self) -> str:
        return f"{self.what}, {self.samples} samples: off by {self.off:.3f}, bound {self.bound:.3f}"


def rank(p: np.ndarray, token: int, random: np.random.Generator) -> float:
    """Probability of all likelier tokens, and a random share of the token's own; of equal ones the lower id first."""
    likelier = p[p > p[token]].sum() + p[:token][p[:token] == p[token]].sum()
    return float(likelier + random.random() * p[token])


def _distance(ranks: Sequence[float]) -> float:
    """Kolmogorov's: the largest between the samples' distribution and the uniform one."""
    ordered, count = np.sort(ranks), len(ranks)
    steps = np.arange(count + 1) / count
    return float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))


def _bound(count: int) -> float:
    """How far off n samples may be: P(off > e) <= 2 exp(-2 n e^2) for every n.

    Of Kolmogorov's distance by Dvoretzky, Kiefer, Wolfowitz and Massart; of accepted drafts by Azuma and Hoeffding, as
    each has the probability that is due given all that came before.
    """
    return float(np.sqrt(np.log(2 / ERROR_RATE) / (2 * count)))


def _named(place: int) -> str:
    return f"{place} and on" if place == POSITIONS - 1 else str(place)
