"""Accept / reject histories: what is done to a device, how one is drawn, and how one reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")

VERBS = ("prefill", "draft", "verify", "commit")
NAN, SENTINEL = math.nan, 1e4
"""A score of 1e4 drowns every real one, and stays far below the -1e9 and less that additive masks use."""


@dataclass(frozen=True)
class TapError:
    """A tap that raises once: in this verb, this far through its stages (per mille).

    In a round, `prefill` is one of another prompt, which must not harm the sequence it interrupts.
    Afterwards the verb is called again, or with `restart` the whole round from `draft` on.
    """

    verb: str
    where: int
    restart: bool = False


@dataclass(frozen=True)
class RoundPlan:
    """One round: `right` true drafts of `offered`, then a wrong one; a plain round offers none and skips `draft`.

    Args:
        asked: drafts that the device is asked for, where that is not K.
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
    error: TapError | None = None
    asked: int | None = None

    def __str__(self) -> str:
        before = "" if self.poison is None else f"poison {self.poison:g}; "
        before = before or ("rehearse; " if self.rehearsed else "")
        what = "plain round" if self.plain else f"accept {self.right} of {self.offered}"
        what += ", then EOS" if self.end else ""
        what += "" if self.asked is None or self.plain else f" (K = {self.asked} in this round)"
        if self.error:
            again = ", round anew" if self.error.restart else ""
            what += f" (error in {self.error.verb} at {self.error.where / 10:.0f} %{again})"
        return before + what


@dataclass(frozen=True)
class SequencePlan:
    """One prefill and its rounds; `start` numbers the prompts that the exploration chose."""

    start: int
    budget: int
    rounds: tuple[RoundPlan, ...]
    error: TapError | None = None


History = tuple[SequencePlan, ...]


def render(history: History, lengths: list[int]) -> str:
    """The history in one line; `lengths` are the prompt tokens of the starts."""
    parts = []
    for sequence in history:
        failing = f" (error at {sequence.error.where / 10:.0f} %)" if sequence.error else ""
        parts.append(f"prefill {lengths[sequence.start]}, budget {sequence.budget}{failing}")
        parts += map(str, sequence.rounds)
    return "; ".join(parts)


def calmer(history: History, *kept: str) -> History:
    """The history without disturbances, but for those named: `rehearsed`, `poison`, `error`."""

    def calmed(plan: RoundPlan) -> RoundPlan:
        return replace(
            plan,
            rehearsed=plan.rehearsed if "rehearsed" in kept else False,
            poison=plan.poison if "poison" in kept else None,
            error=plan.error if "error" in kept else None,
        )

    return tuple(
        replace(
            sequence,
            error=sequence.error if "error" in kept else None,
            rounds=tuple(calmed(plan) for plan in sequence.rounds),
        )
        for sequence in history
    )


@dataclass(frozen=True)
class HistoryLimits:
    """What histories may hold: K, whether it changes, how many starts, the longest budget, and which disturbances."""

    k: int
    starts: int
    budget: int
    poisons: bool
    errors: bool
    varies: bool = False


@st.composite
def histories(draw: st.DrawFn, limits: HistoryLimits) -> History:
    """Random histories of one or two sequences; every draw shrinks to the shorter, rejecting, undisturbed one."""
    sequence = _sequences(limits)
    return tuple(draw(st.lists(sequence, min_size=1, max_size=2)))


@st.composite
def _sequences(draw: st.DrawFn, limits: HistoryLimits) -> SequencePlan:
    # Mostly long budgets: a sequence that the budget ends early has few rounds to go wrong in.
    budget = _pick(draw, (limits.budget,) * limits.budget + tuple(range(2, limits.budget)))
    start = _pick(draw, range(limits.starts))
    rounds = tuple(draw(st.lists(_rounds(limits), min_size=1, max_size=5)))
    error = _pick(draw, (False,) * 7 + (True,)) and limits.errors
    return SequencePlan(start, budget, rounds, TapError("prefill", _pick(draw, range(1000))) if error else None)


@st.composite
def _rounds(draw: st.DrawFn, limits: HistoryLimits) -> RoundPlan:
    k = limits.k
    offered = _pick(draw, (k,) * (4 * k) + tuple(range(1, k)))
    right = _pick(draw, range(offered + 1))
    plain, end = _pick(draw, (False,) * 7 + (True,)), _pick(draw, (False,) * 15 + (True,))
    value = _pick(draw, (None, None, NAN, SENTINEL)) if limits.poisons else None
    error = None
    if limits.errors and _pick(draw, (False, False, False, True)):
        error = TapError(_pick(draw, VERBS), _pick(draw, range(1000)), _pick(draw, (False, True)))
    asked = _pick(draw, (None,) * 3 * k + tuple(range(k))) if limits.varies else None
    offered, right = (offered, right) if asked is None else (asked, min(right, asked))
    return RoundPlan(right, offered, plain, end, rehearsed=value is not None, poison=value, error=error, asked=asked)


def _pick(draw: st.DrawFn, options: Sequence[T]) -> T:
    """One of the options; the first is the simplest.

    Drawn bit by bit: Hypothesis mixes constants of all loaded modules into the integers it draws, which would make
    the histories depend on what else is imported, and keeps those constants in a folder on disk.
    """
    number = 0
    for _ in range((4 * len(options)).bit_length()):
        number = 2 * number + draw(st.booleans())
    return options[number % len(options)]
