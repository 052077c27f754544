"""The host loop on PyTorch's models: greedy, one sequence."""

from __future__ import annotations

import numpy as np
import torch

from parity.device.pipeline import Pipeline
from parity.device.torch.tensors import array
from parity.errors import UsageError
from parity.seam import Sampling


class TorchPipeline(Pipeline):
    """Target and drafter with one sequence in their caches; nothing is padded, as nothing is compiled."""

    prompt_bucket = 1
    samples = False

    def sample(self, settings: Sampling | None, uniforms: np.ndarray) -> None:
        """Greedily, whatever was asked before.

        Raises:
            UsageError: by sampling.
        """
        if settings is not None and settings.temperature:
            raise UsageError("the device torch decodes greedily: it does not sample.")

    def accepted(self, drafts: np.ndarray, verified: np.ndarray) -> int:
        """Tokens of verified [n+1] to emit: those that drafts [n] foresaw and one more, up to an end and the budget."""
        own, chosen = array(drafts), array(verified)
        agreed = (own == chosen[:-1]).cumprod(0).sum()
        ended = torch.isin(chosen, self._ends).long().cumsum(0).eq(0).sum()
        return min(int(torch.minimum(agreed, ended)) + 1, self._left)
