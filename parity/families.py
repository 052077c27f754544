"""The families of drafters as data: what each has to show, and which rows of a round it runs and keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from parity.errors import UsageError

Family = Literal["p-eagle", "eagle-3", "draft-model", "n-gram", "dflash"]

TAPS, MODEL, BLOCK = "taps", "model", "block"
"""What a family may have: a drafter fed by the target's residual streams; layers, rows and a cache; rounds in which the
known tokens' rows are taps alone (the context), behind which a block of the last emitted token and K masks is run."""


@dataclass(frozen=True)
class DrafterFamily:
    """One row of the table.

    Args:
        name: as a golden's manifest has it.
        has: of `TAPS`, `MODEL` and `BLOCK`; a stage whose need it lacks is not declared for it.
        chain: a draft is computed from the one before it; otherwise all in one pass.
        ahead: by how much a row's token is ahead of its position: 1 where it is paired with taps.
        keeps: rows of accepted drafts stay in its cache; otherwise they are run over once more, with true taps.
        checkpoint: the tiny drafter's folder in `fixtures/tiny`.
        fewer: a round may have fewer than K drafts, none included.
    """

    name: Family
    has: frozenset[str]
    chain: bool
    ahead: int
    keeps: bool
    checkpoint: str
    fewer: bool = False

    @property
    def pages(self) -> bool:
        """Whether its rows attend to a cache of rows like them, of which a part may do: see `parity.partial_kv`."""
        return MODEL in self.has and BLOCK not in self.has

    @property
    def waits(self) -> int:
        """Rows of the prompt that wait for the first round: the last one's taps, of a drafter that has some."""
        return int(TAPS in self.has)

    @property
    def first_draft(self) -> int:
        """By how much the first row that drafts is behind the last known token's position."""
        return 1 if BLOCK in self.has else -self.ahead

    def prompt_rows(self, prompt: int) -> int:
        """Rows of its cache after the prefill of a prompt of so many tokens."""
        return prompt - self.waits

    def behind(self, k: int) -> int:
        """Rows of a round behind the C committed ones: those that carry drafts or placeholders, or the block.

        A round of K = 0 has none: the drafter runs over the committed rows alone.
        """
        return (k + 1 if BLOCK in self.has else k - 1) if k else 0

    def kept(self, before: int, agreed: int, emitted: int) -> int:
        """Rows of its cache after a round in which it drafted.

        Args:
            before: rows of the target's cache before the round.
            agreed: how many of the drafts that it ran over are what was emitted in their place; the last draft of a
                round never is run over.
            emitted: tokens of the round.
        """
        return before + min(emitted, 1 + agreed) if self.keeps else before

    def cached(
        self, prompt: int, emitted: Sequence[int], accepted: Sequence[int], ks: Iterable[int]
    ) -> tuple[int, ...]:
        """Rows of its cache after the prefill and after each round of a generation.

        Args:
            emitted: tokens of each round behind the prefill.
            accepted: how many of them were drafts.
            ks: K of each of these rounds; there may be more.
        """
        length, rows = prompt, [self.prompt_rows(prompt)]
        for came, right, k in zip(emitted, accepted, ks, strict=False):
            rows.append(self.kept(length, max(min(right, k - 1), 0), came))
            length += came
        return tuple(rows)

    def committed(self, length: int, cached: int) -> int:
        """C, known tokens that the next pass runs over, by the rows in both caches: [0, `length`) of the target."""
        return length + 1 - self.waits - cached

    def round_rows(self, committed: int, k: int) -> dict[str, int]:
        """Rows of a round by the axes of the drafter's stages."""
        return {"C": committed, "W": committed + self.behind(k), "B": self.behind(k)}


def agreeing(drafts: Sequence[int], emitted: Sequence[int]) -> int:
    """How many drafts, from the first on, are the emitted tokens."""
    pairs = zip(drafts, emitted, strict=False)
    return next((place for place, (mine, its) in enumerate(pairs) if mine != its), min(len(drafts), len(emitted)))


FAMILIES: dict[str, DrafterFamily] = {
    family.name: family
    for family in (
        DrafterFamily("p-eagle", frozenset({TAPS, MODEL}), False, 1, False, "drafter"),
        DrafterFamily("eagle-3", frozenset({TAPS, MODEL}), True, 1, False, "eagle3"),
        DrafterFamily("draft-model", frozenset({MODEL}), True, 0, True, "draft-model"),
        DrafterFamily("n-gram", frozenset(), False, 0, False, "n-gram", fewer=True),
        DrafterFamily("dflash", frozenset({TAPS, MODEL, BLOCK}), False, 0, False, "dflash"),
    )
}


def family_of(name: str) -> DrafterFamily:
    """A family by name; a device that does not say its own has a drafter on taps.

    Raises:
        UsageError: there is none of that name.
    """
    if name and name not in FAMILIES:
        raise UsageError(f"{name!r} is no family of drafters; there is {', '.join(FAMILIES)}")
    return FAMILIES[name or "p-eagle"]
