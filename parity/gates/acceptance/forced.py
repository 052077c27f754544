"""Acceptance under teacher forcing: the same rounds for device and reference, without the noise of generation.

In a chained run every round starts from the golden's tokens, so both sides draft K tokens in the same state. Drafts
are counted against what the golden really emitted behind that state (*greedy*), and weighed by the golden's own
logits (*expected*): 1 + sum over i of the product over j <= i of p_j(draft j), where p_j is the softmax of the golden's
logits in the row that chose the token draft j stands for. That is the acceptance length of a target that samples
at temperature 1 along the golden's text; a draft that a tie decides against loses next to nothing there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parity.errors import Inconclusive
from parity.golden.manifest import PromptCase, Variant
from parity.golden.store import Dump

DRAFTS = "drafter.draft_tokens"


@dataclass(frozen=True)
class Forced:
    """Teacher-forced rounds of one prompt, [R] each: tokens that greedy verification emits, accepted drafts
    among them, and expected tokens."""

    greedy: np.ndarray
    accepted: np.ndarray
    expected: np.ndarray


def forced(golden: Dump, dump: Dump, variant: Variant, prompt: int) -> Forced:
    """Hold the drafts that `dump` recorded against the golden's text and logits.

    Raises:
        Inconclusive: drafts or logits are missing.
    """
    case = golden.manifest.case.prompts[prompt]
    emitted = np.array(case.generation.emitted, np.int64)
    surely = log_softmax(_logits(golden, case, prompt))
    starts = np.cumsum([1, *case.generation.acceptance_length])
    found = []
    for round_, start in enumerate(starts[:-1], 1):
        drafts = dump.stored(variant, prompt, round_, DRAFTS)
        if drafts is None:
            raise Inconclusive(f"{dump.folder} holds no {DRAFTS} of prompt {case.id}, round {round_}")
        found.append(_round(drafts, emitted[start:], surely[start:]))
    return Forced(*(np.array(part) for part in zip(*found, strict=True))) if found else Forced(*[np.zeros(0)] * 3)


def recounted(found: Forced, case: PromptCase) -> bool:
    """Whether a golden's counts are what its own drafts and text give."""
    lengths, drafts = case.generation.acceptance_length, case.generation.accepted_drafts
    return found.greedy.tolist() == list(lengths) and found.accepted.tolist() == list(drafts)


def _round(drafts: np.ndarray, text: np.ndarray, surely: np.ndarray) -> tuple[int, int, float]:
    """Drafts [K] against the text [n] that follows and its log-probabilities [n, V]."""
    count = min(len(drafts), len(text))
    accepted = int(np.cumprod(drafts[:count] == text[:count]).sum())
    legal = (drafts[:count] >= 0) & (drafts[:count] < surely.shape[1])
    each = np.where(legal, surely[np.arange(count), np.where(legal, drafts[:count], 0)], -np.inf)
    return min(accepted + 1, len(text)), accepted, 1 + float(np.exp(np.cumsum(each)).sum())


def _logits(golden: Dump, case: PromptCase, prompt: int) -> np.ndarray:
    """The golden's logits [n, V] behind each emitted token."""
    lengths = case.generation.acceptance_length
    prefill = golden.stored("float32", prompt, 0, "target.logits")
    rounds = [golden.stored("float32", prompt, one, "verify.logits") for one in range(1, 1 + len(lengths))]
    if prefill is None or any(part is None for part in rounds):
        raise Inconclusive(f"{golden.folder} lacks logits of prompt {case.id}")
    return np.concatenate([prefill[-1:], *(part[:length] for part, length in zip(rounds, lengths, strict=True))])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities of logits [n, V], float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
