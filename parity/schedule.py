"""K that changes between rounds: how it is told, and what a golden keeps of it."""

from __future__ import annotations

from collections.abc import Sequence

from parity.errors import UsageError
from parity.limits import DRAFTS, SCHEDULE


def scheduled(k: int | Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """The largest K of a round, and K of each round in turn: nothing where all rounds have the same.

    Args:
        k: drafts a round; or those of each round, from the first one again behind the last. 0 is a round of plain
            decoding, whose drafter runs over what was emitted, and drafts nothing.

    Raises:
        UsageError: no such numbers, or no round drafts.
    """
    told = (k,) if isinstance(k, int) else tuple(k)
    said = ",".join(map(str, told))[:80]
    if not 1 <= len(told) <= SCHEDULE or not all(0 <= one <= DRAFTS for one in told):
        raise UsageError(f"-k {said}: a round has 0 to {DRAFTS} drafts, and up to {SCHEDULE} rounds are told in turn")
    if not any(told):
        raise UsageError(f"-k {said}: no round drafts; a drafter is not tried by plain decoding alone")
    return max(told), told if len(set(told)) > 1 else ()


def read_k(text: str) -> tuple[int, ...]:
    """K as it is told on a command line: `4`, or `4,0,2` for each round in turn.

    Raises:
        UsageError: it is not whole numbers with commas between them.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() and part.isascii() for part in parts):
        raise UsageError(f"-k {text[:80]}: whole numbers are due, as 4, or 4,0,2 for each round in turn")
    return tuple(int(part) for part in parts)
