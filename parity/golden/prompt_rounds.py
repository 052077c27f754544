"""The rounds of one prompt as a golden's manifest tells them: tokens, rows of the caches, and sizes of the stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain, count

from parity.families import BLOCK, DrafterFamily, family_of
from parity.golden.case import Generation, PromptCase
from parity.golden.manifest import Manifest
from parity.stages import Named


@dataclass(frozen=True)
class PromptRounds:
    """One prompt's rounds: its ids, K by round, and per round the tokens that came out (round 0: the first one).

    `drafted` are the rows of the drafter's cache; `drafts` counts those of a round, where a family may draft fewer than
    K. `vocabulary` are the tokens that may be drafted; empty where all may, or nobody says.
    """

    ids: tuple[int, ...]
    k: Callable[[int], int]
    fresh: tuple[tuple[int, ...], ...]
    accepted: tuple[int, ...]
    lengths: tuple[int, ...]
    drafted: tuple[int, ...]
    family: DrafterFamily
    vocabulary: frozenset[int] = frozenset()
    drafts: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, prompt: PromptCase, told: Generation, manifest: Manifest) -> PromptRounds:
        """The rounds of a prompt that the manifest has."""
        fresh, end = [told.emitted[:1]], 1
        ends = [len(prompt.ids)]
        for length in told.acceptance_length:
            fresh.append(told.emitted[end : end + length])
            ends.append(ends[-1] + length)
            end += length
        family, k = family_of(manifest.model.family), manifest.case.drafts
        drafted = family.cached(len(prompt.ids), told.acceptance_length, told.accepted_drafts, map(k, count(1)))
        vocabulary = frozenset(manifest.model.draft_vocabulary or ())
        return cls(prompt.ids, k, tuple(fresh), (0, *told.accepted_drafts), tuple(ends), drafted, family, vocabulary)

    def count(self, round_: int) -> int:
        """C, known tokens that the drafter runs over in this round."""
        if round_ == 0:
            return self.drafted[0]
        return self.family.committed(self.lengths[round_ - 1], self.drafted[round_ - 1])

    def committed(self, round_: int) -> list[int]:
        """The known tokens that the drafter runs over in this round."""
        if round_ == 0:
            return list(self.ids[self.family.ahead :])
        known = [*self.ids, *chain.from_iterable(self.fresh[:round_])]
        return known[-1:] if BLOCK in self.family.has else known[len(known) - self.count(round_) :]

    def due(self, round_: int, named: Named) -> int | None:
        """Rows that a stage has after or in this round, by its first axis; None where nothing says so.

        `lengths[r]` are the target's rows in the cache after round r, `drafted[r]` the drafter's.
        """
        first, committed = round_ == 0, self.count(round_)
        k = 0 if first else self.k(round_)
        drafts = self.drafts.get(round_, k)
        if named.stage.cache:
            return self.lengths[round_] if named.name.startswith("kv.target.") else self.drafted[round_]
        sizes = {
            "S": len(self.ids) if first else drafts + 1,
            **(dict.fromkeys("CW", committed) if first else self.family.round_rows(committed, k)),
            "K": drafts,
            "M": len(self.fresh[round_]),
            "1": 1,
        }
        return sizes.get(named.stage.axes[0])
