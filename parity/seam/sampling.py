"""What a device that samples offers: settings, random numbers, the accept rule alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np

from parity.seam.device import Device

Rule = Literal["residual", "match"]
DRAWS = ("draft", "accept", "replace", "target")
"""What a number in [0, 1) decides, in the order of a table of them: a draft; whether it is accepted; what takes the
place of a rejected one; a token out of the target's own distribution."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn instead of chosen greedily.

    The processors change the rows of target and drafter alike, in the order of the fields, which is that of
    transformers. Ties at an edge are all kept.

    Args:
        temperature: what logits are divided by, a normal number of float32; 0 is greedy, the lowest id on a tie.
        top_k: only the k largest logits; 0 for all.
        top_p: only the smallest set of the likeliest tokens that holds this much probability.
        min_p: only tokens at least this likely, as a share of the likeliest one.
        rule: `residual`: draft d is accepted with probability min(1, p(d) / q(d)), and a rejected one replaced by a
            draw from max(p - q, 0) made to sum to 1, q being what d was drawn from (arXiv 2211.17192, 2302.01318).
            `match`: every row draws from p alone, and drafts are accepted as long as they are what was drawn.

    Raises:
        ValueError: a number outside its range, or an unknown rule.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    rule: Rule = "residual"

    def __post_init__(self) -> None:
        within = self.temperature == 0 or np.finfo(np.float32).tiny <= self.temperature < np.inf
        within = within and self.top_k >= 0 and 0 < self.top_p <= 1 and 0 <= self.min_p <= 1
        if not within or self.rule not in get_args(Rule):
            raise ValueError(f"{self} is no way to sample")


class Samples(Device, Protocol):
    """A device that samples, by numbers that it is given; it says so: `Description.samples`.

    A token is drawn by the inverse of the cumulative distribution in the order of ids: the first whose sum is above
    the number. `verify` returns for row i the draft where it is accepted, what takes its place where it is not (never
    the draft itself), and in the last row a token of the target's: `commit` is what it is without sampling. Rows behind
    the first rejected draft may all be -1: nothing was decided there. Drafts of a drafter without logits are certain: q
    is 1 there. A draft that a tap puts in the place of its own counts as drawn from the row's q. A rule or a processor
    that it does not have it refuses: `parity.errors.NotOffered`.
    """

    def sample(self, settings: Sampling | None, uniforms: np.ndarray) -> None:
        """Sample from the next `prefill` on; greedily again where `settings` is None.

        Args:
            uniforms: float32 [R, 4, n], n > K, in [0, 1): of round r, of what (`DRAWS`) and row i. The first token is
                `target` of round 0, row 0; the token behind n accepted drafts is `target` of row n.
        """
        ...


class SamplesInLanes(Protocol):
    """A device of several lanes that samples; it says so: `Description.samples`."""

    def sample_batch(
        self, lanes: Sequence[int], settings: Sequence[Sampling | None], uniforms: Sequence[np.ndarray]
    ) -> None:
        """`Samples.sample` of each lane: its next sequence has settings and numbers of its own."""
        ...


class Decides(Protocol):
    """A sampling device whose rule can be asked alone. Optional; it must be what `verify` does."""

    def decide(
        self,
        settings: Sampling,
        target_logits: np.ndarray,
        draft_logits: np.ndarray,
        drafts: np.ndarray,
        uniforms: np.ndarray,
    ) -> np.ndarray:
        """What `verify` would return in B rounds that have nothing to do with each other.

        Args:
            target_logits: float32 [B, K+1, V]; minus infinity stands for a probability of 0.
            draft_logits: float32 [B, K, V], of the same vocabulary.
            drafts: int64 [B, K].
            uniforms: float32 [B, 4, K+1], as a round's in `Samples.sample`.

        Returns:
            int64 [B, K+1].
        """
        ...
