"""Rounds whose numbers are chosen: every draft accepted, or the first one rejected, and then a token that is not the
likeliest one.

By random numbers a round rarely comes to its bonus token, and what takes the likeliest one there is mostly right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from parity.compare.report import FAIL, NOT_JUDGED, PASS
from parity.compare.sampling.oracle import processed, residual
from parity.compare.sampling.replay import MARGIN, Decision, decisions, rounding
from parity.compare.sampling.round import SampledRound
from parity.compare.vocabulary import DraftVocabulary
from parity.gates.gate import Check
from parity.seam import DRAWS, Sampling

ACCEPT = DRAWS.index("accept")
REJECTED = 0.99
"""A draft whose probability of being accepted is below this is rejected by the largest number there is."""

LAST = np.float32(1 - 2.0**-24)
"""The largest float32 below 1."""

Playing = Callable[[np.ndarray, int], list[SampledRound]]
"""Plays a sequence by a table of numbers and a budget."""

MET = ("bonus", "replacement")
"""What a round is led to: the token behind all accepted drafts, and the one in the place of the first."""


def steered(
    seen: SampledRound, settings: Sampling, vocabulary: DraftVocabulary, uniforms: np.ndarray, kept: int
) -> np.ndarray | None:
    """The table with other numbers for a round, by which it comes to a token that is not the likeliest; None where its
    rows leave no such choice.

    Args:
        kept: drafts that are to be accepted: all, or none.
    """
    table, p = uniforms.copy(), seen.p(settings)
    margin = _margin(p.shape[1])
    numbers = table[seen.round]
    if any(p[row, int(seen.drafts[row])] <= margin for row in range(kept)):
        return None
    weights, what = p[kept], DRAWS.index("target")
    if settings.rule == "match":
        for row in range(kept):
            numbers[what, row] = _middle(p[row], int(seen.drafts[row]))
    else:
        numbers[ACCEPT, :kept] = 0
        if kept < len(seen.drafts):
            q, draft = seen.q(settings, vocabulary)[kept], int(seen.drafts[kept])
            if q[draft] <= 0 or p[kept, draft] / q[draft] > REJECTED:
                return None
            numbers[ACCEPT, kept] = LAST
            weights, what = residual(p[kept], q), DRAWS.index("replace")
            margin /= max(float(np.maximum(p[kept] - q, 0).sum()), margin)
    own = int(seen.drafts[kept]) if kept < len(seen.drafts) else -1
    token = next((one for one in np.argsort(-weights, kind="stable")[1:].tolist() if one != own), None)
    if token is None or weights[token] <= margin:
        return None
    numbers[what, kept] = _middle(weights, token)
    return table


def _margin(count: int) -> float:
    """A probability, of so many tokens, in whose cell a number can lie a margin from both edges."""
    return 2 * MARGIN * rounding(count)


def _middle(weights: np.ndarray, token: int) -> np.float32:
    """The number in the middle of a token's cell."""
    sums = np.cumsum(weights)
    return np.float32((sums[token] - weights[token] / 2) / sums[-1])


def made(
    rounds: Sequence[SampledRound],
    settings: Sampling,
    vocabulary: DraftVocabulary,
    uniforms: np.ndarray,
    play: Playing,
) -> dict[str, list[Decision]]:
    """Of a sequence that was played, the first round that can be steered to a bonus token, and the first one to another
    token for a draft, each played so: what was decided there, by what it was steered to."""
    found: dict[str, list[Decision]] = {}
    for what in MET:
        for seen, table in _candidates(what, rounds, settings, vocabulary, uniforms, play):
            count = len(seen.drafts)
            numbers = steered(seen, settings, vocabulary, table, count if what == "bonus" else 0)
            if numbers is not None:
                before = 1 + sum(len(one.emitted[0]) for one in rounds[: seen.round])
                again = play(numbers, before + count + 1)[seen.round :]
                found[what] = [one for last in again for one in decisions(last, settings, vocabulary)]
                break
    return found


def _candidates(
    what: str,
    rounds: Sequence[SampledRound],
    settings: Sampling,
    vocabulary: DraftVocabulary,
    uniforms: np.ndarray,
    play: Playing,
) -> Iterator[tuple[SampledRound, np.ndarray]]:
    """Rounds with drafts, each with the table that it is played by; for a bonus token also the first round with drafts
    that the target finds likely."""
    yield from ((seen, uniforms) for seen in rounds if len(seen.drafts))
    if what != "bonus" or len(rounds) < 2 or rounds[1].draft_logits is None:
        return
    table, count = uniforms.copy(), len(rounds[1].drafts)
    for row in range(count):
        seen = play(table, count + 2)[1]
        assert seen.draft_logits is not None
        own, p = processed(seen.draft_logits, settings)[row], seen.p(settings)[row]
        theirs = p[vocabulary.tokens]
        likely = np.where((own > _margin(len(own))) & (theirs > _margin(len(p))), own * theirs, 0)
        table[seen.round, DRAWS.index("draft"), row] = _middle(own, int(likely.argmax()))
    yield play(table, count + 2)[1], table


def check_of(name: str, found: Sequence[dict[str, list[Decision]]], seed: int) -> Check:
    """The check of these decisions; not judged where one of the two was never met."""
    met = {what: sum(what in one for one in found) for what in MET}
    wrong = [one for some in found for many in some.values() for one in many if not one.right]
    line = f"bonus tokens {met['bonus']}, in place of a draft {met['replacement']}, none of them the likeliest"
    figures = {**met, "wrong": len(wrong)}
    if wrong:
        return Check(name, FAIL, f"{wrong[0]}; {len(wrong)} wrong; {line}; seed {seed}", figures)
    if lacking := [what for what, count in met.items() if not count]:
        said = f"not exercised: no round leaves a choice of {' or '.join(lacking)}"
        return Check(name, NOT_JUDGED, f"{said}; {line}; seed {seed}", figures)
    return Check(name, PASS, f"{line}, each what its number calls for; seed {seed}", figures)
