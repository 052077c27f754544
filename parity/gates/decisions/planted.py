"""Ties planted through the seam: the tap returns logits with several equal maxima, the lowest id must win.

A greedy choice over the ranks of a tensor-parallel head is where this goes wrong: the tied columns lie far
apart, at both ends of the vocabulary, and side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from parity.compare.report import FAIL, INCONCLUSIVE, PASS, Place
from parity.compare.scores import SCORES
from parity.drive import untapped
from parity.gates.context import Bench
from parity.gates.decisions.judged import Vocabulary
from parity.gates.evidence import Check

ROUNDS = 3
PARTS = 8
"""Tied columns lie in different eighths of the vocabulary: no sharding over 2, 4 or 8 ranks keeps them together."""

TOKENS = {scores: tokens for tokens, scores in SCORES.items() if tokens.endswith("tokens")}


@dataclass(frozen=True)
class Wrong:
    """A row in which another token than the lowest of the tied ones came out."""

    stage: str
    round: int
    row: int
    token: int
    tied: tuple[int, ...]


@dataclass
class Ties:
    """A tap that makes every row of logits tie and holds the tokens that come out against the ties.

    Args:
        vocabulary: of the draft logits; they are tied only where the lowest column is the lowest id.
        ends: ids that end a generation; they are never among the tied ones.
        rng: which columns tie.
    """

    vocabulary: Vocabulary
    ends: Sequence[int]
    rng: np.random.Generator
    round: int = 0
    tied: dict[str, np.ndarray] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    wrong: list[Wrong] = field(default_factory=list)

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        """Logits [R, X] come back tied in three columns a row; tokens are looked at."""
        if stage in self.tied:
            self.look(stage, value)
        ids = self._ids(stage, value.shape[1]) if stage in TOKENS else np.empty(0)
        free = np.flatnonzero((ids >= 0) & ~np.isin(ids, self.ends))
        if len(free) < PARTS:
            return value
        columns = np.stack([self._columns(free, row) for row in range(len(value))])
        self.tied[TOKENS[stage]] = ids[columns]
        tied = value.copy()
        np.put_along_axis(tied, columns, _above(value), axis=1)
        return tied

    def look(self, stage: str, tokens: Sequence[int] | np.ndarray) -> None:
        """Hold tokens [R] against the ties of the last R rows of this stage."""
        tied = self.tied.get(stage, np.empty((0, 3), np.int64))[-len(tokens) :]
        self.rows[stage] = self.rows.get(stage, 0) + len(tied)
        for row, (token, due) in enumerate(zip(np.asarray(tokens).tolist(), tied.tolist(), strict=False)):
            if token != min(due):
                self.wrong.append(Wrong(stage, self.round, row, token, tuple(due)))

    def _ids(self, stage: str, width: int) -> np.ndarray:
        """The id of each column; none where draft columns are out of order."""
        if not stage.startswith("drafter"):
            return np.arange(width)
        return self.vocabulary.tokens if self.vocabulary.ascending else np.empty(0, np.int64)

    def _columns(self, free: np.ndarray, row: int) -> np.ndarray:
        """Three columns, ascending: in three eighths of the vocabulary, at its ends and middle, or neighbours."""
        if row % 3 == 1:
            return free[[0, len(free) // 2, -1]]
        if row % 3 == 2:
            start = int(self.rng.integers(len(free) - 2))
            return free[start : start + 3]
        eighths = np.array_split(free, PARTS)
        return np.array([self.rng.choice(eighths[part]) for part in np.sort(self.rng.permutation(PARTS)[:3])])


def planted(bench: Bench, vocabulary: Vocabulary) -> Check:
    """Prefill and a few rounds on the golden's shortest prompt, every row of logits tied."""
    device = bench.device()
    says, case = device.describe(), bench.golden.manifest.case
    ids = min((prompt.ids for prompt in case.prompts), key=len)
    ties = Ties(vocabulary, says.eos, np.random.default_rng(bench.seed))
    budget = min(ROUNDS * (says.k + 1) + 1, says.max_positions - len(ids) - says.k)
    first = device.prefill(ids, budget, ties)
    ties.look("target.tokens", [first])
    last, emitted = int(first), 1
    while ties.round < ROUNDS and emitted < budget and last not in says.eos:
        ties.round += 1
        ties.tied.clear()
        drafts = device.draft(ties)
        ties.look("drafter.draft_tokens", drafts)
        tokens = device.verify(drafts, ties)
        ties.look("verify.tokens", tokens)
        fresh = device.commit(drafts, tokens, untapped)
        last, emitted = int(fresh[-1]), emitted + len(fresh)
    return _check(ties)


def _above(logits: np.ndarray) -> np.ndarray:
    """A power of two above every logit of a row, [R, 1]: exact in every dtype."""
    largest = np.abs(logits.astype(np.float64)).max(axis=1, keepdims=True)
    return np.exp2(np.ceil(np.log2(largest + 1)) + 1).astype(logits.dtype)


def _check(ties: Ties) -> Check:
    name, total = "planted ties", sum(ties.rows.values())
    figures = {"rows": ties.rows, "wrong": len(ties.wrong)}
    if ties.wrong:
        first = min(ties.wrong, key=lambda one: one.round)
        deaf = "none of them: it does not go on with what the tap returns"
        what = "one of them" if first.token in first.tied else deaf
        said = f"{len(ties.wrong)} of {total} tied rows: {first.tied} tie and {first.token} is chosen, {what}"
        return Check(name, FAIL, said, figures, Place(first.stage, None, 0, first.round))
    missing = [stage for stage in TOKENS.values() if not ties.rows.get(stage)]
    said = ", ".join(f"{count} rows of {stage}" for stage, count in ties.rows.items())
    said += " tied in three columns: the lowest id won"
    if missing:
        return Check(name, INCONCLUSIVE, f"not tied: {', '.join(missing)}; {said}", figures)
    return Check(name, PASS, said, figures)
