"""What replayed decisions make together: one check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from parity.compare.report import FAIL, INCONCLUSIVE, PASS, Place
from parity.compare.sampling.replay import MARGIN, Decision, rounding
from parity.compare.sampling.round import SampledRound
from parity.gates.gate import Check
from parity.stages import DRAFT_TOKENS, TARGET_TOKENS, VERIFY_TOKENS

CLOSE = 0.01
"""Share of decisions within rounding of an edge: of random numbers 1e-4, of those moved to a margin none."""
FEW = 4
"""Such decisions at any rate: a number in a cell narrower than rounding stays there, and is met in both runs."""


def judged(
    name: str, rounds: Sequence[SampledRound], made: Sequence[Decision], again: Sequence[Decision], seed: int
) -> Check:
    """The check of these decisions, and of those made again by numbers a margin from an edge.

    Args:
        rounds: of the first run.
    """
    wrong = [one for one in (*made, *again) if not one.right]
    kinds, close = Counter(one.what for one in made), sum(bool(one.close) for one in (*made, *again))
    margin = MARGIN * rounding(max(seen.logits.shape[1] for seen in rounds))
    near = sum(bool(one.edge <= 2 * MARGIN * one.slack) for one in again)
    kept = sum(int((seen.tokens[:-1] == seen.drafts).sum()) for seen in rounds)
    counted = ", ".join(f"{what} {count}" for what, count in kinds.items())
    line = (
        f"{len(rounds)} rounds, {len(made)} decisions ({counted}; {kept} accepted) and {len(again)} again, {near} of "
    )
    line += f"them at an edge: a shift of {margin:.1g} shows; {close} within rounding; seed {seed}"
    figures = {"decisions": dict(kinds), "again": len(again), "near": near, "close": close, "wrong": len(wrong)}
    cut = [seen for seen in rounds if list(seen.emitted[0]) != list(seen.emitted[1])]
    if wrong:
        first, bad = wrong[0], Counter(one.what for one in wrong)
        said = ", ".join(f"{count} of {what}" for what, count in bad.items())
        return Check(name, FAIL, f"{first}; wrong are {said}; {line}", figures, _place(first))
    if cut:
        said = f"round {cut[0].round} emits {list(cut[0].emitted[0])}, {list(cut[0].emitted[1])} is due"
        return Check(name, FAIL, f"{said}; {line}", figures)
    if not any(len(seen.drafts) for seen in rounds):
        return Check(name, INCONCLUSIVE, f"no round has a draft; {line}", figures)
    if close > FEW + CLOSE * (len(made) + len(again)):
        return Check(name, INCONCLUSIVE, f"too many decisions within rounding; {line}", figures)
    return Check(name, PASS, line, figures)


def _place(first: Decision) -> Place:
    later = DRAFT_TOKENS if first.what == "draft" else VERIFY_TOKENS
    return Place(later if first.round.round else TARGET_TOKENS, None, first.round.prompt, first.round.round)
