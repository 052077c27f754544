"""What the golden says a server should answer: log-probabilities of tokens and greedy choices, with their noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from parity.compare.choices import Choices, judge, ranked
from parity.compare.rows import NOISY, Clock, row_floors
from parity.errors import Inconclusive, UsageError
from parity.gates.acceptance_counts import log_softmax
from parity.golden.case import PromptCase
from parity.golden.fields import Variant
from parity.golden.views import TrustedGolden
from parity.metrics import measure
from parity.stages import TARGET_LOGITS, VERIFY_LOGITS

EXACT = 1e-5
"""Noise of a float32 server: relative error of a row of logits, as the float32 policy has it (a thousand terms through
a dozen layers). Clean vLLM reaches 0.22 of it in its worst token."""


@dataclass(frozen=True)
class Truth:
    """One prompt with its continuation, S tokens and n; row i of S + n - 1 predicts token i + 1.

    Attributes:
        number: of the prompt in the golden.
        logprobs, floor: float64 [S + n - 1], the log-probability of the token that follows each row, in float32 and
            with the noise of bfloat16.
        noise: float64 [S + n - 1], RMS noise of a row's logits, backed by the noisy tenth's.
        k: drafts a round.
        logits: the rows' float32 logits [S + n - 1, V], read anew each time: a golden's are many.
    """

    number: int
    case: PromptCase
    logprobs: np.ndarray
    floor: np.ndarray
    noise: np.ndarray
    k: int
    logits: Callable[[], np.ndarray]

    @property
    def sequence(self) -> tuple[int, ...]:
        """Prompt and continuation, [S + n]."""
        return (*self.case.ids, *self.case.generated.emitted)

    def judge(self, row: int, mine: int, theirs: int) -> tuple[str, float]:
        """Verdict and regret of choosing `theirs` where the golden, or another server, chose `mine`.

        An id beyond the vocabulary is a bug, whatever the scores.
        """
        scores = self.logits()[row : row + 1]
        if max(mine, theirs) >= scores.shape[1]:
            return "bug", float("inf")
        sides = ranked(scores, np.array([mine]), np.array([theirs]))
        judged: Choices = judge(scores, *sides, self.noise[row : row + 1])
        return str(judged.verdict[0]), float(judged.regret[0])


def truths(golden: TrustedGolden, precision: str) -> list[Truth]:
    """Every prompt of a golden, for a server that computes in this precision.

    Raises:
        Inconclusive: the golden lacks logits, or the bfloat16 ones that are the noise.
        UsageError: its K changes between rounds, which no server is told.
    """
    if golden.manifest.case.schedule:
        raise UsageError(f"{golden.folder}: K changes between its rounds, and no server is told so: dump one of one K")
    prompts = golden.manifest.case.prompts
    read = [_measured(golden, number, precision) for number in range(len(prompts))]
    relative = np.concatenate([one[2] for one in read])
    floors = row_floors(relative, np.zeros(len(relative), bool), NOISY) if precision == "bfloat16" else relative
    ends = np.cumsum([len(one[2]) for one in read])[:-1]
    return [
        Truth(number, case, logprobs, floor, noise * rms, golden.manifest.case.k, _reader(golden, number))
        for number, (case, (logprobs, floor, _, rms), noise) in enumerate(
            zip(prompts, read, np.split(floors, ends), strict=True)
        )
    ]


def _measured(golden: TrustedGolden, number: int, precision: str) -> tuple[np.ndarray, ...]:
    """Log-probabilities and their noisy ones, relative noise of each row of logits, and the RMS of its logits."""
    case = golden.manifest.case.prompts[number]
    exact = logits(golden, number, "float32")
    follow = np.array((*case.ids, *case.generated.emitted))[1 : len(exact) + 1]
    logprobs = _of(exact, follow)
    if precision == "float32":
        rms = np.sqrt((exact.astype(np.float64) ** 2).mean(axis=1))
        return logprobs, logprobs, np.full(len(exact), EXACT), rms
    noisy = logits(golden, number, "bfloat16")
    rows = measure(exact, noisy, row_axes=1).rows
    return logprobs, _of(noisy, follow), rows.rel_l2, np.sqrt(rows.golden_sq / exact.shape[1])


def _of(scores: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    picked: np.ndarray = log_softmax(scores.astype(np.float32))[np.arange(len(tokens)), tokens]
    return picked


def _reader(golden: TrustedGolden, number: int) -> Callable[[], np.ndarray]:
    return lambda: logits(golden, number, "float32")


def logits(golden: TrustedGolden, number: int, variant: Variant) -> np.ndarray:
    """The rows [S + n - 1, V] behind every token but the last: of the prompt, then those that were committed.

    Raises:
        Inconclusive: some are missing.
    """
    case = golden.manifest.case.prompts[number]
    lengths = case.generated.acceptance_length
    parts = [golden.stored(variant, number, 0, TARGET_LOGITS)]
    parts += [golden.stored(variant, number, round_, VERIFY_LOGITS) for round_ in range(1, 1 + len(lengths))]
    there = [part for part in parts if part is not None]
    if len(there) < len(parts) or len(there[0]) != len(case.ids):
        raise Inconclusive(
            f"{golden.folder} lacks {variant} logits of prompt {case.id}: dump it with {TARGET_LOGITS}, "
            f"{VERIFY_LOGITS} and its floor"
        )
    kept = [there[0], *(part[:length] for part, length in zip(there[1:], lengths, strict=True))]
    return np.concatenate(kept)


def experts(
    golden: TrustedGolden, truth: Truth, stages: Sequence[str], rows: int, variant: Variant = "float32"
) -> np.ndarray:
    """The golden's experts, or scores of them, of a prompt's first rows: [rows, layers, X or E].

    Raises:
        Inconclusive: some are missing.
    """
    clock = Clock.of(truth.case)
    layers = []
    for stage in stages:
        parts = [golden.stored(variant, truth.number, round_, stage) for round_ in range(clock.rounds)]
        there = [part for part in parts if part is not None]
        if len(there) < len(parts):
            raise Inconclusive(f"{golden.folder} lacks {stage} of prompt {truth.case.id}")
        lengths = truth.case.generated.acceptance_length
        kept = [there[0], *(part[:length] for part, length in zip(there[1:], lengths, strict=True))]
        layers.append(np.concatenate(kept)[:rows])
    return np.stack(layers, axis=1)
