"""The condition that a planted fault holds under: `cached > 128 and position % 16 = 0`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.errors import UsageError

PASSES = ("prefill", "draft", "verify")
NAMES = {
    "pass": "prefill, draft or verify; what is committed belongs to the verify pass",
    "round": "0 is the prefill",
    "prompt": "the first sequence of a device is 1",
    "cached": "rows in the model's own cache before the pass",
    "accepted": "drafts that the round before accepted; none in the prefill and in round 1",
    "position": "of a row, absolute",
    "row": "of a row in its pass, from 0 on",
    "layer": "from 0 on; stages outside the layers have none",
}
"""What a condition may name. A name without a value in some place is never true there."""
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
_CLAUSE = re.compile(r"([a-z]+)\s*(?:%\s*([1-9][0-9]*)\s*)?(<=|>=|!=|<|>|=)\s*(\w+)")


@dataclass(frozen=True)
class Pass:
    """One pass of one model: what conditions ask of it."""

    kind: str
    round: int
    prompt: int
    cached: int
    accepted: int | None


@dataclass(frozen=True)
class Clause:
    """One comparison of a condition."""

    name: str
    modulus: int
    sign: str
    value: int

    def holds(self, known: Any) -> Any:
        """For a number, or for each of an array; False for None."""
        if known is None:
            return False
        return _OPERATORS[self.sign](known % self.modulus if self.modulus else known, self.value)


@dataclass(frozen=True)
class Condition:
    """Clauses that all have to hold."""

    text: str
    clauses: tuple[Clause, ...]

    @classmethod
    def of(cls, text: str) -> Condition:
        """Read `NAME [% M] SIGN VALUE`, several of them joined by `and`.

        Raises:
            UsageError: it is none.
        """
        return cls(text, tuple(_clause(text, part.strip()) for part in re.split(r"\band\b", text)))

    @property
    def names(self) -> frozenset[str]:
        """What it asks for."""
        return frozenset(clause.name for clause in self.clauses)

    def rows(self, seen: Pass, layer: int | None, positions: np.ndarray | None, first: int = 0) -> np.ndarray:
        """Where it holds: bool [S] over rows at `positions`, or [] for a stage without rows, where clauses about
        rows are false.

        Args:
            first: the row in the pass of the stage's first row.
        """
        row = None if positions is None else first + np.arange(len(positions))
        known = vars(seen) | {"layer": layer, "position": positions, "row": row, "pass": PASSES.index(seen.kind)}
        held = np.ones(() if positions is None else len(positions), bool)
        for clause in self.clauses:
            held = held & clause.holds(known[clause.name])
        return held


def _clause(text: str, part: str) -> Clause:
    found = _CLAUSE.fullmatch(part)
    if found is None or found[1] not in NAMES:
        raise UsageError(f"where={text}: {part!r} is no NAME [% M] SIGN VALUE with a name of {', '.join(NAMES)}.")
    name, modulus, sign, value = found.groups()
    if name == "pass":
        if value not in PASSES or sign not in ("=", "!=") or modulus:
            raise UsageError(f"where={text}: {part!r}; a pass is = or != one of {', '.join(PASSES)}.")
        return Clause(name, 0, sign, PASSES.index(value))
    if not value.isdigit():
        raise UsageError(f"where={text}: {part!r} compares with no number.")
    return Clause(name, int(modulus or 0), sign, int(value))
