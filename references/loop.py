"""The greedy speculative loop over the two oracles: prefill, then draft, verify and commit, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from references.capture import torch_tap
from references.speculation import Speculation, matching


class Recorder(Protocol):
    """A tap that also wants to know which round it is."""

    def begin(self, round_: int) -> None: ...

    def __call__(self, stage: str, value): ...


@dataclass(frozen=True)
class Result:
    """What came out: all emitted ids, and per verify round how many, and how many of them were drafts."""

    emitted: tuple[int, ...]
    acceptance_length: tuple[int, ...]
    accepted_drafts: tuple[int, ...]
    finish: Literal["eos", "length"]


class SpeculativeLoop(Speculation):
    """Speculation that runs by itself."""

    def run(self, prompt: Sequence[int], max_new_tokens: int, recorder: Recorder) -> Result:
        """Prefill the prompt and speculate until EOS or the budget.

        Raises:
            UsageError: prompt, budget and K rows do not fit the context.
        """
        self.admit(len(prompt), max_new_tokens)
        tap = torch_tap(recorder)
        recorder.begin(0)
        self.prefill(prompt, max_new_tokens, tap)
        lengths, accepted = [], []
        while not self.finished:
            recorder.begin(len(lengths) + 1)
            drafts = self.draft(tap)
            tokens = self.verify(drafts, tap)
            lengths.append(len(self.commit(drafts, tokens, tap)))
            accepted.append(min(matching(drafts, tokens), lengths[-1]))
        emitted = self.now.emitted
        return Result(emitted, tuple(lengths), tuple(accepted), "eos" if emitted[-1] in self.eos else "length")
