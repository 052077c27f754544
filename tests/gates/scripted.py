"""A device that decodes a given text, and whose wider passes, drafts, experts and scores are told step by step."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from parity.decode import accepted

WIDTH = 12
EXPERTS = ("target.layers.0.experts", "target.layers.1.experts")


class Scripted:
    """Behind any prompt it emits `text`; step s is the s-th emitted token, and its row is fed token s - 1.

    Args:
        drafts: of each round.
        wide: tokens by step that a pass with drafts chooses instead.
        scores: by step, logits by token beside the text's own, which is 4.
        routes: by layer and step, the experts of a pass with drafts; [0, 1] everywhere else.
        hides: stages that are not handed over.
        eos: ids that end.
    """

    def __init__(
        self, text: Sequence[int], drafts: Sequence[Sequence[int]] = (), wide=None, scores=None, routes=None, hides=(),
        eos=(),
    ):  # fmt: skip
        self.text, self.drafts, self.wide, self.scores = list(text), drafts, wide or {}, scores or {}
        self.routes, self.hides, self.eos = routes or {}, hides, eos

    def describe(self) -> SimpleNamespace:
        return SimpleNamespace(eos=self.eos, name="scripted")

    def _tap(self, tap, stage, value):
        return value if stage in self.hides else tap(stage, value)

    def _logits(self, steps: Sequence[int]) -> np.ndarray:
        logits = np.zeros((len(steps), WIDTH), np.float32)
        for row, step in zip(logits, steps, strict=True):
            row[self._plain(step)] = 4
            for token, score in self.scores.get(step, {}).items():
                row[token] = score
        return logits

    def _plain(self, step: int) -> int:
        return self.text[step] if step < len(self.text) else 0

    def prefill(self, ids, budget, tap):
        logits, tokens = np.ones((len(ids), WIDTH), np.float32), np.full(len(ids), 11)
        logits[-1:], tokens[-1] = self._logits([0]), self._plain(0)
        self._tap(tap, "target.logits", logits)
        first = self._tap(tap, "target.tokens", tokens)[-1]
        self.at, self.budget, self.rounds = 1, budget, iter(self.drafts)  # a tap that raised leaves what was there
        return first

    def draft(self, tap):
        return np.array(next(self.rounds, ()), np.int64)

    def verify(self, drafts, tap):
        steps = range(self.at, self.at + len(drafts) + 1)
        wide, right = len(drafts) > 0, np.cumprod([d == self._plain(s) for d, s in zip(drafts, steps, strict=False)])
        on_path = np.r_[True, right.astype(bool)]
        tokens = [self.wide.get(step, self._plain(step)) if wide else self._plain(step) for step in steps]
        tokens = np.where(on_path, tokens, 10)
        for layer, stage in enumerate(EXPERTS):
            routes = [self.routes.get((layer, step), [0, 1]) if wide else [0, 1] for step in steps]
            self._tap(tap, stage.replace("experts", "router_logits"), np.ones((len(tokens), 4), np.float32))
            self._tap(tap, stage, np.where(on_path[:, None], routes, 3))
        self._tap(tap, "verify.logits", self._logits(steps))
        return self._tap(tap, "verify.tokens", tokens)

    def commit(self, drafts, tokens, tap):
        fresh = accepted(list(drafts), list(tokens), self.eos, self.budget - self.at)
        self.at += len(fresh)
        return fresh
