"""What fits a drafter and the context: drafts of a round, and rows of a prompt with its budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parity.errors import UsageError
from parity.references.drafter_config import FamilyConfig


def admit_drafts(schedule: Sequence[int], config: FamilyConfig) -> None:
    """Refuse a K of a round, of these in turn, that a drafter of this config was not made for.

    Raises:
        UsageError: one is below 0 or above the most that it drafts, or no round drafts.
    """
    highest, most = max(schedule, default=0), config.max_drafts
    if highest < 1 or min(schedule) < 0 or (most is not None and highest > most):
        drafts = "any number of" if most is None else f"1 to {most}"
        limit = "" if most is None else f" ({config.limit} of its config)"
        said = ",".join(map(str, schedule))
        raise UsageError(
            f"-k {said}: this drafter drafts {drafts} tokens in a round{limit}, or 0 in rounds between such ones"
        )


def admit_rows(length: int, budget: int, most: int, sides: Mapping[str, int], asked: int | None = None) -> None:
    """Refuse a prompt of so many tokens that does not fit the context with its budget and the most drafts of a round.

    Args:
        sides: positions that target and drafter have by their configs.
        asked: those that were asked for, where they may be fewer.

    Raises:
        UsageError: it is too short or too long, or there is no budget.
    """
    if length < 2:
        raise UsageError(f"a prompt of {length} tokens is too short: the drafter pairs each token with the one before")
    if budget < 1:
        raise UsageError(f"--max-new-tokens {budget}: at least 1 is needed")
    need, narrow = length + budget + most, min(sides, key=lambda side: sides[side])
    if need <= (context := asked or sides[narrow]):
        return
    limited = f"the {narrow} has {context} (max_position_embeddings of its config)"
    if context < sides[narrow]:
        limited = f"{context} were asked for (max_positions)"
    raise UsageError(
        f"a prompt of {length} tokens, {budget} new tokens and {most} drafts need {need} positions; {limited}"
    )
