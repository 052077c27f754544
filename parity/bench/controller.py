"""K per workload: a controller that picks the drafts of each round from measured acceptance and measured cost.

It maximises expected tokens per expected second. Acceptance of draft i, given that those before it were accepted, is
counted by position with a prior; the seconds of a round with k drafts are a line through what was measured, until k
itself was measured often enough. Both forget: a workload that shifts is followed. A bounded share of the rounds
explores one draft more or less than what looks best, because positions behind K are never seen otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from parity.bench.model import best_k


@dataclass(frozen=True)
class ControllerSettings:
    """How a controller learns.

    Args:
        memory: rounds after which an observation counts e times less: at 32 a shift is half learned within 22 rounds,
            some 50 tokens, and an acceptance of 0.8 is known to 0.07 (one standard error).
        prior: acceptance of a draft that nothing is known of: the middle, which neither stops drafting nor trusts it.
        strength: rounds that the prior counts as: two, so that a handful of rounds overrules it.
        explore: every so many rounds one explores: at 16 at most 6.25 % of the rounds, and of those each costs the
            difference of two neighbouring K.
        known: rounds of one K from which its own mean counts and not the line through all: below, one slow round
            would decide.
    """

    memory: float = 32.0
    prior: float = 0.5
    strength: float = 2.0
    explore: int = 16
    known: float = 3.0


@dataclass
class DraftLengthController:
    """Picks k in `least` to `most` for every round: `choose`, then `took`.

    Args:
        most: K of the device.
        least: 0 where a round without drafts is allowed, which is plain decoding.

    Attributes:
        chosen: k of every round so far: its trace.
    """

    most: int
    least: int = 0
    settings: ControllerSettings = ControllerSettings()
    chosen: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or self.most < 1:
            raise ValueError(f"{self.least} to {self.most} drafts leave nothing to choose")
        self._accepted, self._tried = np.zeros(self.most), np.zeros(self.most)
        self._seconds, self._rounds = np.zeros(self.most + 1), np.zeros(self.most + 1)

    def choose(self) -> int:
        """k of the next round. The first rounds run through most, least and half, so that costs are known."""
        number, best = len(self.chosen), self.best()
        opening = (self.most, self.least, (self.most + 1) // 2)
        if number < len(opening):
            k = opening[number]
        elif number % self.settings.explore == self.settings.explore - 1:
            k = self._neighbour(best, upwards=(number // self.settings.explore) % 2 == 0)
        else:
            k = best
        self.chosen.append(k)
        return k

    def took(self, k: int, accepted: int, seconds: float, cut: bool = False) -> None:
        """What a round of k drafts did.

        Args:
            accepted: drafts that were accepted and emitted.
            cut: EOS or the budget ended it right behind them: the draft behind was never tried.
        """
        kept = np.exp(-1 / self.settings.memory)
        for counted in (self._accepted, self._tried, self._seconds, self._rounds):
            counted *= kept
        self._accepted[:accepted] += 1
        self._tried[: min(accepted + (not cut), k)] += 1
        if k <= self.most:
            self._seconds[k] += seconds
            self._rounds[k] += 1

    @property
    def conditional(self) -> np.ndarray:
        """[K] acceptance by position; one of which little is known leans on the position before it."""
        found, before = np.empty(self.most), self.settings.prior
        for place in range(self.most):
            weight = self.settings.strength
            before = (self._accepted[place] + weight * before) / (self._tried[place] + weight)
            found[place] = before
        return found

    @property
    def cost(self) -> np.ndarray:
        """[K + 1] seconds of a round by its drafts: its own mean where known, else a line through what was measured."""
        measured = self._rounds > 0
        means = self._seconds / np.maximum(self._rounds, 1e-12)
        places = np.flatnonzero(measured[1:]) + 1
        if not len(places):
            return np.ones(self.most + 1)
        weights = np.sqrt(self._rounds[places])
        slope, start = np.polyfit(places, means[places], 1, w=weights) if len(places) > 1 else (0.0, means[places[0]])
        line = np.maximum(start + slope * np.arange(self.most + 1), means[places].min() / 2)
        known = self._rounds >= self.settings.known
        known[0] = measured[0]  # a round without drafts lies on no line: it leaves out most of the drafter
        return np.where(known, means, line)

    def best(self) -> int:
        """The k that looks best now."""
        cost = self.cost
        if self.least:
            cost = np.concatenate([np.full(self.least, np.inf), cost[self.least :]])
        return best_k(self.conditional.tolist(), cost.tolist())

    def _neighbour(self, k: int, upwards: bool) -> int:
        """One draft more or one less; the other way where there is none."""
        stepped = k + 1 if upwards else k - 1
        return stepped if self.least <= stepped <= self.most else 2 * k - stepped if self.most > self.least else k
