"""Prompt lookup, and its loop: drafts are what followed the text's last tokens where they stood before; no weights.

The longest n-gram counts, from `longest` to `shortest` tokens, at its earliest place in prompt and answer; it may
overlap the text's end. Up to K tokens behind it are the drafts, none where nothing matches. So do vLLM
(vllm/v1/spec_decode/ngram_proposer.py) and transformers (PromptLookupCandidateGenerator, whose shortest is 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, cast

import torch
from torch import Tensor, nn

from parity.errors import UsageError
from parity.references.checkpoint import read_config
from parity.references.drafter_config import FamilyConfig
from parity.references.loop import SpeculativeLoop, T
from parity.references.points import point

ARCHITECTURE = "NGram"
LONGEST = 2**10


@dataclass(frozen=True, kw_only=True)
class NGramConfig(FamilyConfig):
    """Lengths of the n-grams that are looked up, in tokens."""

    family = "n-gram"

    longest: int
    shortest: int

    @classmethod
    def read(cls, checkpoint: str | Path) -> NGramConfig:
        """Read `config.json` of a folder.

        Raises:
            UsageError: a length is missing, or they are not 1 <= shortest <= longest.
        """
        raw = read_config(Path(checkpoint), ARCHITECTURE)
        longest, shortest = (cast(Any, raw.get(key)) for key in ("prompt_lookup_max", "prompt_lookup_min"))
        whole = isinstance(longest, int) and isinstance(shortest, int) and bool not in (type(longest), type(shortest))
        if not whole or not 1 <= int(shortest) <= int(longest) <= LONGEST:
            raise UsageError(
                f"{checkpoint}: prompt_lookup_min and prompt_lookup_max are {str(shortest)[:20]} and "
                f"{str(longest)[:20]}; they should be whole numbers, 1 <= min <= max <= {LONGEST}"
            )
        return cls(num_layers=0, max_positions=2**31, longest=int(longest), shortest=int(shortest))


class NGram(nn.Module):
    """The drafter: it has no weights."""

    def __init__(self, config: NGramConfig):
        super().__init__()
        self.config = config

    @property
    def stack(self) -> list[nn.Module]:
        """It has no layers."""
        return []

    @classmethod
    def load(cls, checkpoint: str | Path) -> NGram:
        """Read its config."""
        return cls(NGramConfig.read(checkpoint))

    @point
    def following(self, text: list[int], k: int) -> list[int]:
        """Up to K tokens that followed the last ones of `text` before."""
        for size in range(min(self.config.longest, len(text) - 1), self.config.shortest - 1, -1):
            wanted = text[-size:]
            for place in range(len(text) - size):
                if text[place : place + size] == wanted:
                    return text[place + size : place + size + k]
        return []


class NGramLoop(SpeculativeLoop[T, NGram], Generic[T]):
    """gpt-oss with prompt lookup; there is no cache of the drafter's."""

    @point
    def prefill_drafter(self, prompt: Tensor) -> None:
        """Nothing."""

    @point
    def keep_up(self) -> None:
        """Nothing."""

    @point
    def draft(self) -> Tensor:
        """0 to K ids."""
        text = [*self.state.prompt.tolist(), *self.state.emitted]
        return self.tap("drafter.draft_tokens", torch.tensor(self.drafter.following(text, self.k), dtype=torch.long))
