"""A device that computes nothing: it hands over what a clean device once recorded, and can be told to misbehave."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from parity.golden.store import Dump
from parity.seam import Description
from parity.stages import dataflow

PHASES = {
    "prefill": ("target.", "drafter.", "kv."),
    "draft": ("drafter.",),
    "verify": ("target.", "verify."),
    "commit": ("accept.", "kv."),
}


class Replay:
    """The run in the folder $TORTURE_RUN, handed over again.

    Args:
        meddle: called as `meddle(device, verb, value)` behind each verb; what it returns is the verb's result.
    """

    def __init__(self, meddle: Callable[[Replay, str, object], object] = lambda device, verb, value: value):
        self.run = Dump(Path(os.environ["TORTURE_RUN"]))
        self.meddle = meddle
        self.prompt = self.round = 0
        self.tap = self.wrap = None

    def describe(self) -> Description:
        """What the recorded device said."""
        model, case = self.run.manifest.model, self.run.manifest.case
        layers, ends = (model.num_layers, model.num_drafter_layers), model.target.constants.get("eos_token_id", ())
        says = Description("replay", case.precision, *layers, case.k, 10**4, ends)
        return self.meddle(self, "describe", says)

    def prefill(self, prompt_ids: Sequence[int], max_new_tokens: int, tap) -> int:
        """Round 0."""
        self.prompt = next(
            n for n, one in enumerate(self.run.manifest.case.prompts) if list(one.ids) == list(prompt_ids)
        )
        self.round = 0
        self._hand("prefill", tap)
        return self.meddle(self, "prefill", self._made.emitted[0])

    def draft(self, tap) -> np.ndarray:
        """The drafts of a free run where nobody listens, the recorded ones otherwise."""
        self.round += 1
        self._hand("draft", tap)
        drafts = self._stored("drafter.draft_tokens")
        if drafts is None:
            drafts = np.array([*self._fresh()[: self._made.accepted_drafts[self.round - 1]], -1], np.int64)
        return self.meddle(self, "draft", drafts)

    def verify(self, draft_tokens: np.ndarray, tap) -> np.ndarray:
        """The recorded tokens."""
        self._hand("verify", tap)
        tokens = self._stored("verify.tokens")
        return self.meddle(self, "verify", np.zeros(1, np.int64) if tokens is None else tokens)

    def commit(self, draft_tokens: np.ndarray, verify_tokens: np.ndarray, tap) -> np.ndarray:
        """The tokens that the recorded free run emitted in this round."""
        self._hand("commit", tap)
        return self.meddle(self, "commit", np.array(self._fresh(), np.int64))

    @property
    def _made(self):
        return self.run.manifest.case.prompts[self.prompt].generation

    def _fresh(self) -> Sequence[int]:
        """What the free run emitted in this round."""
        lengths = self._made.acceptance_length
        first = 1 + sum(lengths[: self.round - 1])
        return self._made.emitted[first : first + lengths[self.round - 1]] if self.round <= len(lengths) else ()

    def _stored(self, stage: str) -> np.ndarray | None:
        return self.run.contents(self.run.manifest.case.precision, self.prompt, self.round, stage)

    def _hand(self, verb: str, tap) -> None:
        """Every stage of this verb, in the order of the dataflow."""
        self.tap = tap
        taken = self.wrap(self, tap) if self.wrap else tap
        for named in dataflow(self.run.declared.values(), self.round):
            if named.name.startswith(PHASES[verb]) and (value := self._stored(named.name)) is not None:
                taken(named.name, np.array(value))


def load(target, drafter, k, precision, **options):
    """The clean device."""
    return Replay()
