"""Acceptance counted again: of a free generation, and under teacher forcing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from parity.errors import Inconclusive
from parity.golden.case import Generation, PromptCase
from parity.golden.fields import Variant
from parity.golden.views import DumpView, TrustedGolden
from parity.stages import DRAFT_TOKENS, TARGET_LOGITS, VERIFY_LOGITS


@dataclass(frozen=True)
class AcceptanceCounts:
    """The verify rounds of some prompts; only tokens that were really emitted count.

    A round is *cut* when EOS or the budget ended it right behind an accepted draft, so that no token of the
    target came behind it.

    Attributes:
        rounds: R.
        tokens: emitted by them, counted from the emitted ids.
        cut: rounds cut, at most one a prompt.
        reached: [K] rounds whose draft i was accepted and emitted.
        tried: [K] rounds of i drafts or more in which draft i - 1 was accepted and the round was not cut right behind
            it.
        two_or_more: rounds that emitted at least two tokens.
    """

    rounds: int
    tokens: int
    cut: int
    reached: np.ndarray
    tried: np.ndarray
    two_or_more: int

    @classmethod
    def of(cls, generations: Sequence[Generation], ks: Sequence[int]) -> AcceptanceCounts:
        """Count the rounds of these generations.

        Args:
            ks: K of each round in turn, from the first one again behind the last.
        """
        most = np.array([ks[n % len(ks)] for one in generations for n in range(len(one.acceptance_length))], np.int64)
        lengths = np.array([n for generation in generations for n in generation.acceptance_length], np.int64)
        drafts = np.array([n for generation in generations for n in generation.accepted_drafts], np.int64)
        cut = drafts >= lengths
        places = np.arange(1, max(ks) + 1)
        ended = cut[:, None] & (drafts[:, None] == places - 1)
        return cls(
            rounds=len(lengths),
            tokens=sum(len(generation.emitted) - 1 for generation in generations),
            cut=int(cut.sum()),
            reached=(drafts[:, None] >= places).sum(axis=0),
            tried=((drafts[:, None] >= places - 1) & (most[:, None] >= places) & ~ended).sum(axis=0),
            two_or_more=int((lengths >= 2).sum()),
        )

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per round, the target's own included."""
        return self.tokens / max(self.rounds, 1)

    @property
    def accepted_drafts(self) -> float:
        """Drafts among them, per round."""
        return float(self.reached.sum()) / max(self.rounds, 1)

    @property
    def two_or_more_share(self) -> float:
        """Share of rounds that emitted at least two tokens."""
        return self.two_or_more / max(self.rounds, 1)

    @property
    def rates(self) -> np.ndarray:
        """[K] share of all rounds that accepted draft i."""
        return self.reached / max(self.rounds, 1)

    @property
    def conditional(self) -> np.ndarray:
        """[K] share of the rounds that tried draft i; NaN where none did."""
        return np.where(self.tried > 0, self.reached / np.maximum(self.tried, 1), np.nan)

    @property
    def adds_up(self) -> bool:
        """AL = 1 + sum of rates - cut / R, in whole tokens: every round emits one token of the target unless cut."""
        return self.tokens == self.rounds + int(self.reached.sum()) - self.cut

    def identity(self) -> str:
        """The identity with its figures."""
        rates = " + ".join(f"{rate:.3f}" for rate in self.rates)
        cut = f" - {self.cut / max(self.rounds, 1):.3f} ({self.cut} cut)" if self.cut else ""
        return f"AL {self.acceptance_length:.3f} {'=' if self.adds_up else 'is not'} 1 + {rates}{cut}"

    def figures(self) -> dict[str, object]:
        """For JSON."""
        return {
            "rounds": self.rounds,
            "tokens": self.tokens,
            "cut": self.cut,
            "acceptance_length": self.acceptance_length,
            "accepted_drafts": self.accepted_drafts,
            "rates": self.rates.tolist(),
            "conditional": [None if np.isnan(rate) else float(rate) for rate in self.conditional],
            "tried": self.tried.tolist(),
            "two_or_more": self.two_or_more_share,
        }


def contradictions(generation: Generation, ks: Sequence[int], budget: int, ends: Collection[int] = ()) -> Iterator[str]:
    """What in a generation's counts cannot be, in words.

    Args:
        ks: K of each round in turn.
        ends: ids known to end a generation.
    """
    lengths, drafts = generation.acceptance_length, generation.accepted_drafts
    if len(lengths) != len(drafts):
        yield f"{len(lengths)} acceptance lengths, {len(drafts)} counts of accepted drafts"
        return
    if sum(lengths) != len(generation.emitted) - 1:
        yield f"acceptance lengths add up to {sum(lengths)}, {len(generation.emitted) - 1} tokens came behind the first"
    for number, (length, count) in enumerate(zip(lengths, drafts, strict=True), 1):
        last, k = number == len(lengths), ks[(number - 1) % len(ks)]
        if not (1 <= length <= k + 1 and count <= k):
            yield f"round {number}: length {length} with {count} accepted drafts at K = {k}"
        elif length - count not in ((0, 1) if last else (1,)):
            yield f"round {number}: length {length} with {count} accepted drafts; " + (
                "no cut explains it" if last else "only the last round can be cut"
            )
    if len(generation.emitted) > budget or (generation.finish == "length" and len(generation.emitted) != budget):
        yield f"{len(generation.emitted)} tokens of a budget of {budget}, ended by {generation.finish}"
    if any(token in ends for token in generation.emitted[:-1]):
        yield "it continues behind an end token"
    if generation.finish == "eos" and ends and generation.emitted[-1] not in ends:
        yield "it says EOS and ends with another token"


@dataclass(frozen=True)
class ForcedRounds:
    """Teacher-forced rounds of one prompt, [R] each: tokens that greedy verification emits, accepted drafts
    among them, and expected tokens."""

    greedy: np.ndarray
    accepted: np.ndarray
    expected: np.ndarray


def forced_rounds(golden: TrustedGolden, dump: DumpView, variant: Variant, prompt: int) -> ForcedRounds:
    """Compare the drafts that `dump` recorded with the golden's text and logits.

    Raises:
        Inconclusive: drafts or logits are missing.
    """
    case = golden.manifest.case.prompts[prompt]
    emitted = np.array(case.generated.emitted, np.int64)
    surely = log_softmax(_logits(golden, case, prompt))
    starts = np.cumsum([1, *case.generated.acceptance_length])
    rounds = []
    for round_, start in enumerate(starts[:-1], 1):
        drafts = dump.stored(variant, prompt, round_, DRAFT_TOKENS)
        if drafts is None:
            raise Inconclusive(f"{dump.folder} holds no {DRAFT_TOKENS} of prompt {case.id}, round {round_}")
        rounds.append(_round(drafts, emitted[start:], surely[start:]))
    if not rounds:
        return ForcedRounds(np.zeros(0), np.zeros(0), np.zeros(0))
    greedy, accepted, expected = (np.array(part) for part in zip(*rounds, strict=True))
    return ForcedRounds(greedy, accepted, expected)


def counts_match(rounds: ForcedRounds, case: PromptCase) -> bool:
    """Whether a golden's counts are what its own drafts and text give."""
    lengths, drafts = case.generated.acceptance_length, case.generated.accepted_drafts
    return bool(rounds.greedy.tolist() == list(lengths) and rounds.accepted.tolist() == list(drafts))


def _round(drafts: np.ndarray, text: np.ndarray, surely: np.ndarray) -> tuple[int, int, float]:
    """Drafts [K] against the text [n] that follows and its log-probabilities [n, V]."""
    count = min(len(drafts), len(text))
    accepted = int(np.cumprod(drafts[:count] == text[:count]).sum())
    legal = (drafts[:count] >= 0) & (drafts[:count] < surely.shape[1])
    each = np.where(legal, surely[np.arange(count), np.where(legal, drafts[:count], 0)], -np.inf)
    return min(accepted + 1, len(text)), accepted, 1 + float(np.exp(np.cumsum(each)).sum())


def _logits(golden: TrustedGolden, case: PromptCase, prompt: int) -> np.ndarray:
    """The golden's logits [n, V] behind each emitted token."""
    lengths = case.generated.acceptance_length
    prefill = golden.stored("float32", prompt, 0, TARGET_LOGITS)
    rounds = [golden.stored("float32", prompt, round_, VERIFY_LOGITS) for round_ in range(1, 1 + len(lengths))]
    present = [part for part in rounds if part is not None]
    if prefill is None or len(present) < len(rounds):
        raise Inconclusive(f"{golden.folder} lacks logits of prompt {case.id}")
    return np.concatenate([prefill[-1:], *(part[:length] for part, length in zip(present, lengths, strict=True))])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities of logits [n, V], float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    logarithms: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logarithms
