"""Expected speed-up of speculation from acceptance, K and cost.

A round drafts K tokens and verifies them; draft i can be accepted only if all before it were. With a_i the probability
that it is then, a round emits 1 + a_1 + a_1 a_2 + … tokens: the bonus or the correction, and the accepted drafts. Where
every a_i is a, that is (1 - a^(K+1)) / (1 - a) (arXiv 2211.17192, equation 1), and where a draft costs c plain steps
the speed-up is (1 - a^(K+1)) / ((1 - a)(K c + 1)) (theorem 3.8): at c = 1 the share of a round's K + 1 rows that come
out as tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul


def expected_tokens(conditional: Sequence[float]) -> float:
    """Tokens of a round, the target's own included.

    Args:
        conditional: [K] probability that draft i is accepted, those before it being so.

    Raises:
        ValueError: one is no probability.
    """
    if not all(0 <= one <= 1 for one in conditional):
        raise ValueError(f"{list(conditional)} are no probabilities")
    return 1.0 + float(sum(accumulate(conditional, mul)))


def expected_tokens_constant(a: float, k: int) -> float:
    """The same where every draft is accepted with probability `a`: (1 - a^(K+1)) / (1 - a); K + 1 at a = 1."""
    if not 0 <= a <= 1:
        raise ValueError(f"{a} is no probability")
    return float(k + 1) if a == 1 else float((1 - a ** (k + 1)) / (1 - a))


def speed_up_constant(a: float, k: int, c: float = 1.0) -> float:
    """(1 - a^(K+1)) / ((1 - a)(K c + 1)): drafts one by one, each at `c` plain steps, a verification at one."""
    return expected_tokens_constant(a, k) / (k * c + 1)


@dataclass(frozen=True)
class RoundCost:
    """Seconds of a whole round, and of one plain step, which emits one token."""

    round: float
    plain: float

    def per_draft(self, k: int) -> float:
        """c, plain steps that each of K drafts costs: what a round takes beyond one step."""
        return (self.round / self.plain - 1) / k


def speed_up(conditional: Sequence[float], cost: RoundCost) -> float:
    """Tokens of a round times a plain step's seconds, over the round's: the general form of `speed_up_constant`."""
    return expected_tokens(conditional) * cost.plain / cost.round


def best_k(conditional: Sequence[float], seconds: Sequence[float]) -> int:
    """The K of most expected tokens per second.

    Args:
        conditional: [K] as for `expected_tokens`.
        seconds: [K + 1] of a round with 0, 1, … K drafts.
    """
    rates = [expected_tokens(conditional[:k]) / second for k, second in enumerate(seconds)]
    return max(range(len(rates)), key=rates.__getitem__)
