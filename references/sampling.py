"""Speculative sampling from the equations, in float64 on the distributions behind the processors.

A target p and a drafter q over one vocabulary. A draft d, drawn from q, is accepted with probability
min(1, p(d) / q(d)); a rejected one is replaced by a draw from max(p - q, 0) made to sum to 1 (arXiv 2211.17192,
algorithm 1; arXiv 2302.01318, theorem 1). Sample-and-match draws from p alone, and a draft stands where it is what was
drawn. What is random comes as numbers in [0, 1): see `parity.seam.Samples`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from parity.seam import DRAWS, Sampling

Known = Callable[[Tensor], Tensor]
"""Columns of the draft logits to ids of the target's vocabulary."""


def processed(logits: Tensor, settings: Sampling) -> Tensor:
    """The distribution of logits [..., V] behind temperature, top-k, top-p and min-p: float64 [..., V].

    Ties at an edge are all kept. At temperature 0 the first largest logit has all of it.
    """
    scores = logits.double()
    if not settings.temperature:
        largest = (scores == scores.amax(-1, keepdim=True)).cumsum(-1)
        return ((largest == 1) & (largest.diff(dim=-1, prepend=largest[..., :1] * 0) == 1)).double()
    scores = (scores - scores.amax(-1, keepdim=True)) / settings.temperature
    if 0 < settings.top_k < scores.shape[-1]:
        least = scores.topk(settings.top_k).values[..., -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    p = scores.softmax(-1)
    if settings.top_p < 1:
        ordered = p.sort(-1, descending=True).values
        held = (ordered.cumsum(-1) < settings.top_p).sum(-1, keepdim=True)  # tokens before the one that makes it enough
        p = p.masked_fill(p < ordered.gather(-1, held.clamp(max=p.shape[-1] - 1)), 0.0)
    p = p.masked_fill(p < settings.min_p * p.amax(-1, keepdim=True), 0.0)
    return p / p.sum(-1, keepdim=True)


def drawn(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The first id of each row of weights [n, V] whose cumulative share lies above its number [n]: ids [n]."""
    sums = weights.cumsum(-1)
    return (sums > uniforms[:, None] * sums[:, -1:]).long().argmax(-1)


def accepted(p: Tensor, q: Tensor, drafts: Tensor, uniforms: Tensor) -> Tensor:
    """Which drafts [n] stand by their numbers [n], under rows [n, V] of both distributions: bool [n]."""
    rows = torch.arange(len(drafts))
    return uniforms * q[rows, drafts] < p[rows, drafts]


def residual(p: Tensor, q: Tensor) -> Tensor:
    """What p has more than q [n, V]; all of p where that is nothing, as where no draft can be rejected."""
    left = (p - q).clamp(min=0)
    return torch.where(left.sum(-1, keepdim=True) > 0, left, p)


def decided(p: Tensor, q: Tensor, drafts: Tensor, numbers: Tensor, settings: Sampling) -> Tensor:
    """What a round's rows become: the draft where it stands, what replaces it where not, and one token behind: [n+1].

    Args:
        p: float64 [n+1, V].
        q: float64 [n, V], what the drafts were drawn from.
        drafts: ids [n].
        numbers: float64 [4, n+1], by `DRAWS`.
    """
    count = len(drafts)
    _, accept, replace, target = numbers
    if settings.rule == "match":
        return drawn(p, target)
    stands = accepted(p[:-1], q, drafts, accept[:count])
    others = drawn(residual(p[:-1], q), replace[:count])
    return torch.cat((torch.where(stands, drafts, others), drawn(p[-1:], target[count:])))


def table(seed: int, prompt: int, budget: int, k: int) -> np.ndarray:
    """The random numbers of a prompt, as many as its budget can need: float32 [budget, 4, K+1] in [0, 1)."""
    shape = budget, len(DRAWS), k + 1
    numbers: np.ndarray = np.random.default_rng((seed, prompt)).random(shape, np.float32)
    return numbers


class Sampler:
    """Settings and a sequence's numbers, for the loop: what each of its choices becomes.

    Args:
        uniforms: float32 [R, 4, n]; see `parity.seam.Samples`.
    """

    def __init__(self, settings: Sampling, uniforms: np.ndarray):
        self.settings, self.numbers = settings, torch.from_numpy(np.array(uniforms)).double()

    def token(self, logits: Tensor) -> Tensor:
        """The first token, from the prompt's last row [1, V]: ids [1]."""
        return drawn(processed(logits, self.settings), self.numbers[0, DRAWS.index("target"), :1])

    def columns(self, logits: Tensor, round_: int, first: int) -> Tensor:
        """Drafts `first` … of a round from their logits [n, VD]: columns of these [n]."""
        numbers = self.numbers[round_, DRAWS.index("draft"), first : first + len(logits)]
        return drawn(processed(logits, self.settings), numbers)

    def tokens(self, logits: Tensor, proposed: Tensor | None, to_target: Known, drafts: Tensor, round_: int) -> Tensor:
        """What the target's rows [n+1, V] become: ids [n+1].

        Args:
            proposed: the draft logits [n, VD]; None of drafts that were looked up, which are certain.
            to_target: the ids of their columns.
        """
        p, q = processed(logits, self.settings), torch.zeros(len(drafts), logits.shape[1], dtype=torch.float64)
        if proposed is None:
            q[torch.arange(len(drafts)), drafts] = 1.0
        else:
            q[:, to_target(torch.arange(proposed.shape[1]))] = processed(proposed, self.settings)
        return decided(p, q, drafts, self.numbers[round_, :, : len(drafts) + 1], self.settings)
