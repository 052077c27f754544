"""Every draw and every acceptance of sampled rounds, once more in float64 from the logits that the device showed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from parity.compare.sampling.oracle import processed, residual
from parity.compare.sampling.round import SampledRound
from parity.compare.vocabulary import DraftVocabulary
from parity.seam import DRAWS, Sampling

ULP = 2.0**-24
RATIO = 2e-5
"""Of p / q: softmax of scores up to 100 in float32 leaves each within 1e-5."""
SLACK = 1e-5
"""Of the edges of top-p and min-p: sums of a row in float32."""
MARGIN = 4
"""Times what rounding explains: so far from an edge lie the numbers of the second run."""


def rounding(width: int) -> float:
    """What float32 may move a cumulative sum over this many tokens by: a random walk of its roundings, eight sigma."""
    return float(8 * np.sqrt(width) * ULP)


@dataclass(frozen=True)
class Decision:
    """One number and what was decided by it.

    Attributes:
        low, high: the same is due for every number between them.
        right: the decision is due, or the number so close to an edge that rounding may have decided it.
        close: the latter.
        said: what is due and what came, in words.
        slack: how much rounding may move an edge.
    """

    round: SampledRound
    what: str
    row: int
    low: float
    high: float
    right: bool
    close: bool
    said: str
    slack: float

    @property
    def uniform(self) -> float:
        """The number."""
        return self.round.uniform(self.what, self.row)

    @property
    def edge(self) -> float:
        """How far it is from the nearest number that decides otherwise."""
        edges = [abs(self.uniform - edge) for edge in (self.low, self.high) if 0 < edge < 1]
        return min(edges, default=1.0)

    def nearer(self, upper: bool) -> float:
        """Another number that decides the same, a margin from an edge."""
        margin = MARGIN * self.slack
        if self.high - self.low <= 2 * margin:
            return (self.low + self.high) / 2
        if self.high >= 1 or (self.low > 0 and not upper):
            return self.low + margin if self.low > 0 else self.uniform
        return self.high - margin

    def __str__(self) -> str:
        place = f"prompt {self.round.prompt}, round {self.round.round}, row {self.row}"
        return f"{place}, {self.what} by {self.uniform:.7f}: {self.said}"


def decisions(seen: SampledRound, settings: Sampling, vocabulary: DraftVocabulary) -> Iterator[Decision]:
    """Everything that was drawn or accepted in a round."""
    yield from of_drafts(seen, settings, vocabulary)
    yield from of_tokens(seen, settings, vocabulary)


def of_drafts(seen: SampledRound, settings: Sampling, vocabulary: DraftVocabulary) -> Iterator[Decision]:
    """How a round's drafts were drawn; nothing of a drafter without logits."""
    if (logits := seen.draft_logits) is None:
        return
    columns = vocabulary.columns(seen.drafts)
    own = _variants(lambda slack: processed(logits, settings, slack))
    for row, column in enumerate(columns.tolist()):
        yield _draw(seen, "draft", row, column, [one[row] for one in own])


def of_tokens(seen: SampledRound, settings: Sampling, vocabulary: DraftVocabulary) -> Iterator[Decision]:
    """What was accepted, what took a draft's place and what was drawn behind."""
    rows, p = range(len(seen.drafts)), _variants(lambda slack: seen.p(settings, slack))
    if settings.rule == "match" or not len(seen.drafts):
        for row, token in enumerate(seen.tokens[: seen.decided]):
            yield _draw(seen, "target", row, int(token), [one[row] for one in p])
        return
    q = _variants(lambda slack: seen.q(settings, vocabulary, slack))
    for row in rows[: seen.decided]:
        yield from _by_residual(seen, row, [(ours[row], theirs[row]) for ours in p for theirs in q])
    if seen.decided > len(rows):
        yield _draw(seen, "target", len(rows), int(seen.tokens[-1]), [one[-1] for one in p])


def _by_residual(seen: SampledRound, row: int, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Iterator[Decision]:
    """Whether the draft is accepted, and what takes its place; `pairs` are p and q [V] behind edges moved or not."""
    draft, token, uniform = int(seen.drafts[row]), int(seen.tokens[row]), seen.uniform("accept", row)
    chances = [_ratio(float(p[draft]), float(q[draft])) for p, q in pairs]
    chance, kept = min(1.0, chances[0]), token == draft
    due = uniform < chance
    allowed = uniform <= max(chances) * (1 + RATIO) if kept else uniform >= min(chances) * (1 - RATIO)
    said = f"draft {draft} is {'' if kept else 'not '}accepted, p / q is {chances[0]:.7f}"
    low, high = (0.0, chance) if due else (chance, 1.0)
    right = bool(kept == due or allowed)
    yield Decision(seen, "accept", row, low, high, right, kept != due and right, said, RATIO * chance + ULP)
    if not kept:
        left = [residual(p, q) for p, q in pairs]
        p, q = pairs[0]
        rest = max(float(np.maximum(p - q, 0).sum()), ULP)
        yield _draw(seen, "replace", row, token, left, 1 / rest)


def _ratio(p: float, q: float) -> float:
    """p / q of a draft; one that was forced may have no q: it is accepted wherever it has a p."""
    return p / q if q > 0 else np.inf if p > 0 else 0.0


def _draw(
    seen: SampledRound, what: str, row: int, token: int, weights: Sequence[np.ndarray], amplified: float = 1.0
) -> Decision:
    """A draw from one of `weights` [V]; what differs between them is no error."""
    uniform, slack = seen.uniform(what, row), rounding(len(weights[0])) * amplified
    found = [_cell(one, uniform) for one in weights]
    due, low, high = found[0]
    right = any(_within(one, token, uniform, slack) for one in weights)
    said = f"token {token} comes out, {due} is due ({low:.7f} to {high:.7f})"
    return Decision(seen, what, row, low, high, right, right and token != due, said, slack)


def _cell(weights: np.ndarray, uniform: float) -> tuple[int, float, float]:
    """The token that this number stands for, and its edges."""
    sums = np.cumsum(weights)
    token = min(int(np.searchsorted(sums, uniform * sums[-1], side="right")), int(np.flatnonzero(weights)[-1]))
    return token, float(sums[token] - weights[token]), float(sums[token])


def _within(weights: np.ndarray, token: int, uniform: float, slack: float) -> bool:
    """Whether a token is possible, and the number in its cell or `slack` beside it."""
    if not 0 <= token < len(weights) or weights[token] <= 0:
        return False
    high = float(weights[: token + 1].sum())
    return bool(high - weights[token] - slack <= uniform <= high + slack)


def _variants(of: Callable[[float], np.ndarray]) -> list[np.ndarray]:
    """The distributions behind edges where they are, and moved either way where that changes anything."""
    nominal, *moved = (of(slack) for slack in (0.0, SLACK, -SLACK))
    return [nominal, *(one for one in moved if not np.array_equal(one > 0, nominal > 0))]


def tightened(made: Sequence[Decision], uniforms: np.ndarray) -> np.ndarray:
    """A table that decides the same, every number moved to a margin from one of its edges."""
    closer = uniforms.copy()
    for number, one in enumerate(made):
        closer[one.round.round, DRAWS.index(one.what), one.row] = one.nearer(bool(number % 2))
    return closer
