"""What the speculative loop carries from step to step of a sequence, what it records to, and what a run comes to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from parity.references.capture import Wrapped
from parity.references.drafter_layers import KVCache


class Recorder(Protocol):
    """A tap that also wants to know which round it is."""

    def begin(self, round_: int) -> None: ...

    def __call__(self, stage: str, value: Any) -> Any: ...


@dataclass(frozen=True)
class Result:
    """What came out: all emitted ids, and per verify round how many, and how many of them were drafts."""

    emitted: tuple[int, ...]
    acceptance_length: tuple[int, ...]
    accepted_drafts: tuple[int, ...]
    finish: Literal["eos", "length"]


@dataclass
class State:
    """One sequence under way.

    Attributes:
        tap: is handed every stage.
        budget: tokens to emit at most.
        emitted: ids so far; the prefill's comes first.
        length: rows of the target's cache that belong to emitted tokens.
        draft_length: the same of the drafter's cache.
        cache: the drafter's.
        pending_taps: [C, T*H], the taps of the emitted tokens that the drafter has not run over.
        prompt: ids [S].
        round: of those begun; the prefill is 0.
        proposed: draft logits [n, VD] of this round, where it samples, pass by pass.
        chained: the drafts that this round's rows behind `draft_length` carry, where a family may keep such rows.
    """

    tap: Wrapped
    budget: int
    emitted: list[int] = field(default_factory=list)
    length: int = 0
    draft_length: int = 0
    cache: KVCache = field(default_factory=KVCache)
    pending_taps: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    prompt: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    round: int = 0
    proposed: tuple[Tensor, ...] = ()
    chained: tuple[int, ...] = ()

    def copy(self) -> State:
        """A state that no step changes; steps never change tensors in place."""
        return replace(self, emitted=list(self.emitted), cache=self.cache.copy())
