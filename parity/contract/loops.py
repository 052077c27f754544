"""The walk through a device that is run whole: its rounds as it says that they end."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from parity.contract.tap import ContractTap
from parity.contract.walk import PROMPTS, Stopped, Walk

PARTS = "the sequence is the loop's own"


class LoopWalk(Walk):
    """A `parity.seam.Looping`, speculating freely."""

    def rounds(self) -> None:
        """Prompts of two tokens until one has a round."""
        for self.prompt in PROMPTS:
            budget = 2 * self.k + 4
            tap = self.tap()
            said = Rounds(self, tap)
            emitted = self.call("speculate", self.prompt, budget, tap, said)
            try:
                ids = [index(one) for one in emitted]
            except TypeError as error:
                self.ledger.expect("speculate: returned", False, f"speculate returned no integers ({error})")
                raise Stopped("speculate returned nothing that can be read") from None
            alike = f"speculate returned {ids}, its rounds emitted {said.emitted}"
            self.ledger.expect("speculate: returned", ids == said.emitted, alike)
            over = f"speculate returned {len(ids)} ids of a budget of {budget}"
            self.ledger.expect("speculate: returned", 0 < len(ids) <= budget, over)
            ended = [place for place, token in enumerate(ids) if token in self.says.eos]
            behind = f"speculate continues behind {ids[ended[0]] if ended else ''}, which ends a generation"
            self.ledger.expect("speculate: returned", not ended or ended[0] == len(ids) - 1, behind)
            if said.count > 1:
                return
        raise Stopped("every short prompt of the walk ends at its first token")


class Rounds:
    """The `on_round` of a walk."""

    def __init__(self, walk: LoopWalk, tap: ContractTap):
        self.walk, self.tap = walk, tap
        self.emitted: list[int] = []
        self.count, self.held = 0, 2

    def __call__(self, drafts: Sequence[Any], emitted: Sequence[Any], tokens: Sequence[Any] | None = None) -> None:
        expect, line, k = self.walk.ledger.expect, "speculate: rounds", self.walk.k
        try:
            drafts, emitted = [index(one) for one in drafts], [index(one) for one in emitted]
            tokens = None if tokens is None else [index(one) for one in tokens]
        except TypeError as error:
            expect(line, False, f"round {self.count}: ids that are no integers ({error})")
            return
        m, self.emitted = len(emitted), [*self.emitted, *emitted]
        if self.count == 0:
            said = f"the first call has {len(drafts)} drafts and {m} tokens: the prefill has none and one"
            expect(line, not drafts and m == 1, said)
            self.walk.cached = cached = self.walk.family.prompt_rows(2)
            self.tap.close({"S": 2, "C": cached, "W": cached, "kv.target": 2, "kv.drafter": cached})
        else:
            expect(line, len(drafts) <= k, f"round {self.count} has {len(drafts)} drafts; K is {k}")
            expect(line, m >= 1, f"round {self.count} emits nothing")
            if tokens is not None:
                self._accepted(drafts, emitted, tokens)
            self.walk.close(self.tap, len(drafts), self.held, drafts, emitted)
            self.held += m
        self.count += 1

    def _accepted(self, drafts: Sequence[int], emitted: Sequence[int], tokens: Sequence[int]) -> None:
        """What the target chose says what is emitted, unless the budget or an end of the generation cuts it."""
        said = f"round {self.count} has {len(drafts)} drafts and {len(tokens)} tokens of the target; one more is due"
        if not self.walk.ledger.expect("speculate: rounds", len(tokens) == len(drafts) + 1, said):
            return
        agreed = int(np.cumprod([a == b for a, b in zip(drafts, tokens, strict=False)]).sum())
        due = list(tokens[: agreed + 1])
        said = f"round {self.count}: {agreed} drafts agree and {list(emitted)} is emitted, {due} are due"
        self.walk.ledger.expect("commit: returned", bool(emitted) and due[: len(emitted)] == list(emitted), said)
