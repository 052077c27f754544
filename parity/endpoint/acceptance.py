"""Acceptance of a server that speculates, from its counters: the only thing a black box tells of its drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS
from parity.endpoint.counters import Names
from parity.endpoint.server import Continuation
from parity.gates.acceptance_counts import AcceptanceCounts
from parity.gates.acceptance_interval import TokenSums, interval_verdict, paired_bootstrap
from parity.gates.gate import Check

LENGTH, ADDED, PLACES = "acceptance length", "counters add up", "acceptance rates"


@dataclass(frozen=True)
class Tally:
    """Counts over all prompts' free continuations.

    Attributes:
        tokens, rounds: [P] per prompt: tokens behind the first one, counted from the answers; verify rounds.
        accepted, drafted: sums as the server counts, or None.
        places: [K] accepted drafts by place, or none.
    """

    tokens: np.ndarray
    rounds: np.ndarray
    accepted: float | None
    drafted: float | None
    places: np.ndarray

    @classmethod
    def of(cls, asked: Sequence[Continuation]) -> Tally | None:
        """None where the server does not count, or not for every prompt."""
        counted = [one.counted for one in asked if one.counted is not None]
        if len(counted) < len(asked):
            return None
        width = min(len(one.places) for one in counted)
        return cls(
            np.array([len(one.free.tokens) - 1 for one in asked], np.float64),
            np.array([one.rounds for one in counted], np.float64),
            _sum([one.accepted for one in counted]),
            _sum([one.drafted for one in counted]),
            np.array([one.places[:width] for one in counted]).sum(axis=0) if width else np.zeros(0),
        )


def _sum(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) if len(there) == len(values) else None


def no_speculation(asked: Sequence[Continuation]) -> Check:
    """A server that is said to decode plainly verifies nothing."""
    tally, name = Tally.of(asked), "no speculation"
    if tally is None:
        return Check(name, NOT_JUDGED, "the server exports no counters of speculation, as one without it does")
    if tally.rounds.any():
        return Check(name, FAIL, f"it verified {tally.rounds.sum():.0f} rounds of drafts: this is no plain decoding")
    return Check(name, PASS, "its counters of speculation stand still")


def acceptance(asked: Sequence[Continuation], names: Names | None, bound: float, seed: int) -> list[Check]:
    """Whether the counters are those of these prompts, then acceptance against the golden's, and by place."""
    tally, case = Tally.of(asked), [one.truth.case.generated for one in asked]
    if tally is None:
        said = "the server exports no counters that are known (vLLM's /metrics, or counts in SGLang's and llama.cpp's "
        return [Check(LENGTH, INCONCLUSIVE, said + "answers): nothing is known of its drafter")]
    if not tally.rounds.any():
        said = f"{tally.tokens.sum():.0f} tokens and no verify round with drafts: it does not speculate"
        return [Check(LENGTH, FAIL, said)]
    k = asked[0].truth.k
    added = add_up(tally, k, names)
    golden = AcceptanceCounts.of(case, (k,))
    reference = TokenSums(
        np.array([len(one.emitted) - 1 for one in case], np.float64),
        np.array([len(one.acceptance_length) for one in case], np.float64),
    )
    interval = paired_bootstrap(TokenSums(tally.tokens, tally.rounds), reference, seed)
    rounds = int(min(tally.rounds.sum(), golden.rounds))
    verdict, why = interval_verdict(interval, bound, rounds, len(asked))
    length = tally.tokens.sum() / tally.rounds.sum()
    line = (
        f"server {length:.3f}, golden {golden.acceptance_length:.3f} tokens a round, bonus included ({length - 1:.3f}, "
    )
    line += f"{golden.acceptance_length - 1:.3f} without); {interval}; {rounds} rounds, {len(asked)} prompts"
    figures = {"server": length, "golden": golden.acceptance_length, "relative": interval.estimate, "bound": bound}
    figures |= {"low": interval.low, "high": interval.high, "rounds": rounds}
    if interval.low > bound:
        verdict, why = FAIL, f"more than {bound:.0%} above what the golden's drafter is given: another one, or made up"
    if added.verdict != PASS:
        verdict, why = INCONCLUSIVE, added.name + ": no"
    return [added, Check(LENGTH, verdict, line + (f"; {why}" if why else ""), figures), _places(tally, golden)]


def add_up(tally: Tally, k: int, names: Names | None) -> Check:
    """Rounds and accepted tokens give the tokens that came out, in one convention or the other; and K is the golden's.

    Every round emits one token of the target's own; what a last round accepts behind the end of the text comes on top,
    K tokens a prompt at the most.
    """
    rounds, tokens, slack = tally.rounds.sum(), tally.tokens.sum(), k * len(tally.tokens)
    if tally.drafted == 0 or (tally.drafted is not None and tally.drafted > rounds * k):
        said = f"it drafts {tally.drafted / rounds:.2f} tokens a round where the golden has K = {k}"
        return Check(ADDED, INCONCLUSIVE, f"{said}: name a golden of the server's K")
    if tally.drafted is not None and tally.drafted < rounds * k - slack:
        said = f"it drafts {tally.drafted / rounds:.2f} tokens a round where the golden has K = {k}"
        return Check(ADDED, INCONCLUSIVE, f"{said}: name a golden of the server's K (or it drafts fewer at times)")
    if tally.accepted is None:
        return Check(ADDED, INCONCLUSIVE, "no counter of accepted tokens: the rounds cannot be checked")
    over = {"without": rounds + tally.accepted - tokens, "with": tally.accepted - tokens}
    fit = [name for name, more in over.items() if 0 <= more <= slack]
    declared = names and ("with" if names.bonus else "without")
    said = f"{tally.accepted:.0f} accepted in {rounds:.0f} rounds, {tokens:.0f} tokens behind the first ones"
    if not fit:
        return Check(ADDED, INCONCLUSIVE, f"{said}: neither with nor without the bonus token do they add up")
    if names and declared not in fit:
        counts = f"{names.engine} counts {declared} the bonus token"
        return Check(ADDED, INCONCLUSIVE, f"{said}: {counts}, and they add up {fit[0]} it")
    if len(fit) > 1 and declared not in fit:
        return Check(ADDED, INCONCLUSIVE, f"{said}: with the bonus token and without it alike; give it more rounds")
    way = fit[0] if len(fit) == 1 else str(declared)
    known = f"as {names.engine} counts" if names and declared == way else "as the sum shows"
    line = f"{said}; accepted counts drafts {way} the bonus token ({known}), {over[way]:.0f} behind the texts' ends"
    return Check(ADDED, PASS, line, {"convention": f"{way} bonus", "accepted": tally.accepted, "rounds": rounds})


def _places(tally: Tally, golden: AcceptanceCounts) -> Check:
    if not len(tally.places):
        return Check(PLACES, NOT_JUDGED, "the server does not count by place")
    server = tally.places / tally.rounds.sum()
    pairs = ", ".join(
        f"{place}: {a:.3f} / {b:.3f}" for place, (a, b) in enumerate(zip(server, golden.rates, strict=False), 1)
    )
    figures = {"server": server.tolist(), "golden": golden.rates.tolist()}
    return Check(PLACES, NOT_JUDGED, f"share of rounds that accept draft i, server / golden: {pairs}", figures)
