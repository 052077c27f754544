"""Accept / reject histories: what is done to a device, how one is drawn, and how one reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hypothesis import strategies as st

VERBS = ("prefill", "draft", "verify", "commit")
NAN, SENTINEL = math.nan, 1e4
"""A score of 1e4 drowns every real one, and stays far below the -1e9 and less that additive masks use."""


@dataclass(frozen=True)
class Error:
    """A tap that raises once: in this verb, this far through its stages (per mille); `prefill` is one of another prompt.

    Afterwards the verb is called again, or with `restart` the whole round from `draft` on.
    """

    verb: str
    where: int
    restart: bool = False


@dataclass(frozen=True)
class Round:
    """One round: `right` true drafts of `offered`, then a wrong one; a plain round offers none and skips `draft`.

    Args:
        end: the target says EOS behind the right drafts, and one more draft agrees with it.
        rehearsed: draft and verify are tried first, by a tap that raises at their last stage: they must repeat.
        poison: between rehearsal and round, this goes into the dead rows.
    """

    right: int
    offered: int
    plain: bool = False
    end: bool = False
    rehearsed: bool = False
    poison: float | None = None
    error: Error | None = None

    def __str__(self) -> str:
        before = "" if self.poison is None else f"poison {self.poison:g}; "
        before = before or ("rehearse; " if self.rehearsed else "")
        what = "plain round" if self.plain else f"accept {self.right} of {self.offered}"
        what += ", then EOS" if self.end else ""
        if self.error:
            again = ", round anew" if self.error.restart else ""
            what += f" (error in {self.error.verb} at {self.error.where / 10:.0f} %{again})"
        return before + what


@dataclass(frozen=True)
class Sequence:
    """One prefill and its rounds; `start` numbers the prompts that the exploration chose."""

    start: int
    budget: int
    rounds: tuple[Round, ...]
    error: Error | None = None


History = tuple[Sequence, ...]


def render(history: History, lengths: list[int]) -> str:
    """The history in one line; `lengths` are the prompt tokens of the starts."""
    parts = []
    for one in history:
        failing = f" (error at {one.error.where / 10:.0f} %)" if one.error else ""
        parts.append(f"prefill {lengths[one.start]}, budget {one.budget}{failing}")
        parts += map(str, one.rounds)
    return "; ".join(parts)


def calmer(history: History, *kept: str) -> History:
    """The history without disturbances, but for those named: `rehearsed`, `poison`, `error`."""
    calm = {"poison": None, "error": None, "rehearsed": False}
    calm = {field: value for field, value in calm.items() if field not in kept}
    error = {field: value for field, value in calm.items() if field == "error"}
    return tuple(replace(one, **error, rounds=tuple(replace(r, **calm) for r in one.rounds)) for one in history)


def histories(k: int, starts: int, budget: int, poisons: bool, errors: bool) -> st.SearchStrategy[History]:
    """Random histories of one or two sequences; every draw shrinks to the shorter, rejecting, undisturbed one."""
    verbs = st.builds(Error, st.sampled_from(VERBS), st.integers(0, 999), st.booleans())
    error = st.one_of(st.none(), st.none(), st.none(), verbs) if errors else st.none()
    poison = st.sampled_from((None, None, NAN, SENTINEL) if poisons else (None,))

    @st.composite
    def rounds(draw: st.DrawFn) -> Round:
        offered = draw(st.sampled_from((k,) * 5 + tuple(range(1, k))))
        right = draw(st.integers(0, offered))
        value = draw(poison)
        return Round(
            right,
            offered,
            plain=draw(st.sampled_from((False,) * 7 + (True,))),
            end=draw(st.sampled_from((False,) * 11 + (True,))),
            rehearsed=value is not None,
            poison=value,
            error=draw(error),
        )

    start = st.integers(0, starts - 1)
    failing = st.one_of(st.none(), st.none(), st.none(), st.none(), verbs) if errors else st.none()
    # Mostly long budgets: a sequence that the budget ends early has few rounds to go wrong in.
    budgets = st.sampled_from((budget, budget, *range(2, budget)))
    sequence = st.builds(Sequence, start, budgets, st.lists(rounds(), min_size=1, max_size=5).map(tuple), failing)
    return st.lists(sequence, min_size=1, max_size=2).map(tuple)
