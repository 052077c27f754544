"""From timed runs to figures: rates, times, what speculation accepted, and the ratio to plain decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from parity.bench.records import BenchFigures, BenchRounds, BenchTurn, Speculation
from parity.bench.statistics import CONFIDENCE, Ratio, Spread, Times, rate_ratio, spread


def figures(turns: Sequence[BenchTurn], plain: Sequence[BenchTurn] = ()) -> BenchFigures:
    """The figures of some runs, every group's repeats among them.

    Args:
        plain: the runs of the same groups and repeats without drafts; none where that is what these are.
    """
    repeats = _by_repeat(turns)
    seconds = [sum(turn.decode for turn in some) for some in repeats]
    tokens = [sum(turn.decoded for turn in some) for some in repeats]
    rates = [count / second for count, second in zip(tokens, seconds, strict=True)]
    return BenchFigures(
        tokens_per_second=spread(rates),
        token_ms=spread([1000 / rate for rate in rates]) if all(rates) else spread([float("inf")] * len(rates)),
        first_token_ms=spread(
            [1000 * float(np.mean([one for turn in some for one in turn.first])) for some in repeats]
        ),
        stage_ms=_stages(repeats),
        over_plain=over(turns, plain) if plain else None,
        speculation=speculation(one for turn in turns for one in turn.rounds),
    )


def by_prompt(turns: Sequence[BenchTurn], plain: Sequence[BenchTurn] = ()) -> dict[str, BenchFigures]:
    """Figures of each prompt that ran alone; nothing of a batch, whose time is everyone's."""
    groups = dict.fromkeys(turn.prompts for turn in turns if len(turn.prompts) == 1)
    return {
        group[0]: figures(
            [one for one in turns if one.prompts == group], [one for one in plain if one.prompts == group]
        )
        for group in groups
    }


def times(turns: Sequence[BenchTurn]) -> Times:
    """Tokens and seconds [G, R] by group and repeat."""
    groups = list(dict.fromkeys(turn.prompts for turn in turns))
    ordered = [sorted((one for one in turns if one.prompts == group), key=lambda one: one.repeat) for group in groups]
    tokens = np.array([[turn.decoded for turn in some] for some in ordered], np.float64)
    return Times(tokens, np.array([[turn.decode for turn in some] for some in ordered], np.float64))


def over(turns: Sequence[BenchTurn], plain: Sequence[BenchTurn], confidence: float = CONFIDENCE) -> Ratio | None:
    """The rate over plain decoding's in the same repeats; None where nothing is decoded behind the first token."""
    return rate_ratio(times(turns), times(plain), confidence)


def speculation(rounds: Iterable[BenchRounds]) -> Speculation | None:
    """What the rounds of these sequences accepted; None without a round."""
    kept = [one for one in rounds if one.emitted]
    if not kept:
        return None
    emitted, accepted, drafted = (
        np.array([count for one in kept for count in getattr(one, part)], np.int64)
        for part in ("emitted", "accepted", "drafted")
    )
    places = np.arange(1, max(int(drafted.max()), 1) + 1)
    cut = accepted >= emitted  # EOS or the budget ended it right behind an accepted draft
    reached = (accepted[:, None] >= places).sum(axis=0)
    ended = cut[:, None] & (accepted[:, None] == places - 1)
    tried = ((accepted[:, None] >= places - 1) & (drafted[:, None] >= places) & ~ended).sum(axis=0)
    count = len(emitted)
    return Speculation(
        rounds=count,
        mean_acceptance_rate=float(accepted.sum() / max(drafted.sum(), 1)),
        mean_acceptance_length=float(emitted.mean()),
        total_accepted_tokens=int(accepted.sum()),
        two_or_more=float((emitted >= 2).mean()),
        per_position=tuple((reached / count).tolist()),
        conditional=tuple(float(r / t) if t else None for r, t in zip(reached, tried, strict=True)),
        tried=tuple(tried.tolist()),
        ks=dict(sorted(Counter(drafted.tolist()).items())),
    )


def _by_repeat(turns: Sequence[BenchTurn]) -> list[list[BenchTurn]]:
    return [[turn for turn in turns if turn.repeat == repeat] for repeat in sorted({turn.repeat for turn in turns})]


def _stages(repeats: Sequence[Sequence[BenchTurn]]) -> dict[str, Spread]:
    """Milliseconds of a call of each verb that was called in every repeat."""
    names = dict.fromkeys(name for some in repeats for turn in some for name in turn.stages)
    found = {}
    for name in names:
        calls = [sum(turn.calls.get(name, 0) for turn in some) for some in repeats]
        if all(calls):
            taken = [sum(turn.stages.get(name, 0.0) for turn in some) for some in repeats]
            found[name] = spread([1000 * second / call for second, call in zip(taken, calls, strict=True)])
    return found
