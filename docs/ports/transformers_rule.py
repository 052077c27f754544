"""The accept rule of transformers' assisted decoding: its own `_speculative_sampling` behind its own processors.

It draws by torch's random numbers, through `torch.rand_like` and `torch.multinomial`. While it runs both give what the
table says instead, so that every decision of it can be replayed; what torch itself draws is not asked.
"""

from __future__ import annotations

from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.utils import _speculative_sampling

from parity.errors import NotOffered
from parity.seam import DRAWS


class TransformersRule:
    """Without drafts' logits its loop samples and matches, which is no function and is not asked here."""

    own_numbers = False

    def refuse(self, settings):
        if settings.rule != "residual":
            raise NotOffered("transformers has no function of its own that samples and matches")

    def draw(self, settings, logits, numbers):
        """Ids of logits [W, V]."""
        with fed((), numbers):
            return torch.multinomial(behind(settings, torch.tensor(logits)).softmax(-1), 1)[:, 0].numpy()

    def decide(self, settings, target_logits, draft_logits, drafts, uniforms):
        if not settings.temperature:  # `do_sample=False` is another branch of its loop, which takes the largest
            return target_logits.argmax(-1)
        rounds = zip(*(torch.tensor(each) for each in (target_logits, draft_logits, drafts, uniforms)), strict=True)
        return np.stack([self.decided(settings, *each) for each in rounds])

    def decided(self, settings, target, draft, drafts, uniforms):
        """One round; rows behind the first rejected draft are -1. Run twice: what is drawn last depends on the row."""
        count = len(drafts)
        given = drafts[None], behind(settings, draft)[None], count, behind(settings, target)[None]
        numbers = dict(zip(DRAWS, uniforms, strict=True))
        with fed(numbers["accept"][:count], [0.5]):
            _, kept = _speculative_sampling(*given)
        last = numbers["target" if kept == count else "replace"][kept]
        with fed(numbers["accept"][:count], [float(last)]):
            ids, _ = _speculative_sampling(*given)
        return np.pad(ids[0].numpy(), (0, count - int(kept)), constant_values=-1)


def behind(settings, logits):
    """Logits [W, V] behind the processors, in the order of its `_get_logits_processor`."""
    chain = LogitsProcessorList()
    if settings.temperature not in (0, 1):
        chain.append(TemperatureLogitsWarper(settings.temperature))
    if settings.top_k:
        chain.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1:
        chain.append(TopPLogitsWarper(settings.top_p))
    if settings.min_p:
        chain.append(MinPLogitsWarper(settings.min_p))
    scores = chain(None, logits)
    return torch.where(scores == scores.amax(-1, keepdim=True), 0.0, -torch.inf) if not settings.temperature else scores


@contextmanager
def fed(accept, numbers):
    """Torch draws by these numbers: `accept` for `rand_like`, one of `numbers` for each row of `multinomial`."""

    def multinomial(weights, num_samples):
        sums = weights.double().cumsum(-1)
        beyond = sums > torch.as_tensor(numbers, dtype=torch.float64)[:, None] * sums[:, -1:]
        return (beyond & (weights > 0)).int().argmax(-1, keepdim=True)

    with (
        mock.patch.object(torch, "rand_like", lambda like: torch.as_tensor(accept, dtype=like.dtype)),
        mock.patch.object(torch, "multinomial", multinomial),
    ):
        yield
