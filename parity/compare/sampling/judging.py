"""A run on a golden that samples: each choice taken again, by the golden's numbers, from what it was drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from parity.compare.choices import NOISE, SAME, TIE, Choices
from parity.compare.report import INCONCLUSIVE, StageResult, join
from parity.compare.rows import StageRows, stage_rows
from parity.compare.sampling.replay import Decision, of_drafts, of_tokens
from parity.compare.sampling.round import SampledRound
from parity.compare.scores import row_noise
from parity.compare.vocabulary import DraftVocabulary
from parity.errors import Inconclusive
from parity.golden.views import DumpView, TrustedGolden
from parity.seam import Sampling
from parity.stages import DRAFT_TOKENS, DRAFTER_LOGITS, TARGET_LOGITS, TARGET_TOKENS, VERIFY_LOGITS, VERIFY_TOKENS

LOGITS = {TARGET_TOKENS: TARGET_LOGITS, DRAFT_TOKENS: DRAFTER_LOGITS, VERIFY_TOKENS: VERIFY_LOGITS}
NONE = np.empty(0, np.int64)


@dataclass
class Replayed:
    """What a replay says of the rows [R] of a stage of tokens; bool each.

    Attributes:
        sampled: rows that a number decides, and those behind a rejected draft, which nothing does; others are greedy.
        wrong: the number calls for another token.
        close: it lies so near to an edge that rounding may have decided.
        unseen: nothing shows what was drawn from.
        said: the first wrong decision, in words.
    """

    sampled: np.ndarray
    wrong: np.ndarray = field(init=False)
    close: np.ndarray = field(init=False)
    unseen: np.ndarray = field(init=False)
    said: str = ""

    def __post_init__(self) -> None:
        self.wrong, self.close, self.unseen = (np.zeros_like(self.sampled) for _ in range(3))

    def settled(self, choices: Choices) -> Choices:
        """The choices, those that were drawn judged by the replay: another token than the golden's is no bug where its
        own logits call for it, which are judged for themselves."""
        drawn = np.where(self.close, TIE, NOISE)
        verdict = np.where(self.sampled & (choices.verdict != SAME), drawn, choices.verdict)
        return Choices(verdict, np.where(self.sampled, 0.0, choices.regret))

    def told(self, result: StageResult, rows: StageRows) -> StageResult:
        """The result with the first wrong decision in words; inconclusive where nothing shows whether one is."""
        hidden = int((self.unseen & (rows.golden != rows.device)).sum())
        if self.said or not hidden:
            return replace(result, note=self.said or result.note)
        note = f"{hidden} of {result.rows} rows were drawn from logits that are not shown"
        return replace(result, verdict=join([result.verdict, INCONCLUSIVE]), note=note)


@dataclass(frozen=True)
class Emitted:
    """One token of a free run: its round and row (0 and 0 of a prefill), whether it is an accepted draft, and what the
    round emitted before it."""

    prompt: int
    round: int
    row: int
    token: int
    accepted: bool
    before: tuple[int, ...] = ()


def replayed(golden: TrustedGolden, run: DumpView, rows: StageRows) -> Replayed | None:
    """Take every choice in these rows again; None where the golden is greedy, or the stage is none of tokens.

    Raises:
        Inconclusive: the golden does not say which token a column of its draft logits is.
    """
    stage = rows.named.name
    if not golden.manifest.case.draws or stage not in LOGITS:
        return None
    found = Replayed(np.zeros(len(rows.golden), dtype=bool))
    numbers: dict[int, tuple[Sampling, np.ndarray]] = {}
    for prompt, round_ in dict.fromkeys(zip(rows.prompt.tolist(), rows.round.tolist(), strict=True)):
        if (sampled := numbers.get(prompt) or golden.manifest.case.sampled(prompt)) is None:
            return None
        numbers[prompt] = sampled
        at = np.flatnonzero((rows.prompt == prompt) & (rows.round == round_))
        at = at[-1:] if stage == TARGET_TOKENS else at
        found.sampled[at] = True
        made = _decisions(golden, run, Choice(stage, prompt, round_, rows.device[at]), *sampled)
        if made is None:
            found.unseen[at] = True
            continue
        for one in made:
            found.wrong[at[one.row]] |= not one.right
            found.close[at[one.row]] |= one.close
            found.said = found.said or ("" if one.right else str(one))
    return found


@dataclass(frozen=True)
class Choice:
    """A run's tokens [n] of a stage in one round; of the prefill the last one."""

    stage: str
    prompt: int
    round: int
    tokens: np.ndarray


def _decisions(
    golden: TrustedGolden, run: DumpView, choice: Choice, settings: Sampling, numbers: np.ndarray
) -> Iterator[Decision] | None:
    """The decisions behind a choice; None where what it was made from is not shown."""
    found = _round_of(golden, run, choice, numbers)
    if found is None:
        return None
    seen, vocabulary = found
    return (of_drafts if choice.stage == DRAFT_TOKENS else of_tokens)(seen, settings, vocabulary)


def _round_of(
    golden: TrustedGolden, run: DumpView, choice: Choice, numbers: np.ndarray
) -> tuple[SampledRound, DraftVocabulary] | None:
    """The round of a choice with what it was made from, and which token each draft logit is of; None where that is not
    shown."""
    stage, prompt, round_, chosen = choice.stage, choice.prompt, choice.round, choice.tokens
    logits = _scores(golden, run, LOGITS[stage], prompt, round_)
    if logits is None or chosen.dtype.kind not in "iu":
        return None
    seen = SampledRound(prompt, round_, NONE, chosen.astype(np.int64), None, logits[-len(chosen) :], numbers[round_])
    greedy = DraftVocabulary(NONE, "")
    if stage == TARGET_TOKENS:
        return seen, greedy
    if stage == DRAFT_TOKENS:
        return replace(seen, drafts=seen.tokens, draft_logits=logits), _vocabulary(golden, logits.shape[1])
    verified = _verified(golden, run, prompt, round_)
    proposed = _scores(golden, run, DRAFTER_LOGITS, prompt, round_) if len(verified) else None
    if DRAFTER_LOGITS not in golden.declared or not len(verified):
        return replace(seen, drafts=verified), greedy
    if proposed is None:
        return None
    return replace(seen, drafts=verified, draft_logits=proposed), _vocabulary(golden, proposed.shape[1])


def can_emit(golden: TrustedGolden, run: DumpView, step: Emitted) -> bool | None:
    """Whether a free run can emit a token where it has the golden's text before it: by the numbers of its round, from
    any logits within rounding of those that the run shows of the same rows. None where it shows too little to tell.

    Raises:
        Inconclusive: as `replayed`.
    """
    from parity.compare.sampling.possible import RowOutcomes

    sampled, stage = golden.manifest.case.sampled(step.prompt), VERIFY_TOKENS if step.round else TARGET_TOKENS
    tokens = run.contents(run.manifest.case.precision, step.prompt, step.round, stage)
    if sampled is None or tokens is None:
        return None
    chosen = Choice(stage, step.prompt, step.round, tokens if step.round else tokens[-1:])
    found = _round_of(golden, run, chosen, sampled[1])
    if found is None or step.row >= len(found[0].logits):
        return None
    seen, vocabulary = found
    if tuple(seen.drafts[: step.row].tolist()) != step.before:
        return None
    noise = [_noise_of(golden, run, LOGITS[one], step.prompt, step.round) for one in (stage, DRAFT_TOKENS)]
    return (step.token, step.accepted) in RowOutcomes(seen, step.row, sampled[0], vocabulary, noise[0], noise[1])


def _noise_of(golden: TrustedGolden, run: DumpView, stage: str, prompt: int, round_: int) -> float:
    """The RMS rounding of a round's rows of logits, the largest; 0 where there are none."""
    rows = stage_rows(golden, run, golden.declared[stage]) if stage in golden.declared else None
    if rows is None:
        return 0.0
    return float(row_noise(rows)[(rows.prompt == prompt) & (rows.round == round_)].max(initial=0.0))


def _verified(golden: TrustedGolden, run: DumpView, prompt: int, round_: int) -> np.ndarray:
    """The drafts that a round verified: the golden's where they were forced."""
    forced = DRAFT_TOKENS in run.manifest.case.forced
    variant, side = ("float32", golden) if forced else (run.manifest.case.precision, run)
    drafts = side.contents(variant, prompt, round_, DRAFT_TOKENS)
    return NONE if drafts is None else drafts.astype(np.int64)


def _scores(golden: TrustedGolden, run: DumpView, stage: str, prompt: int, round_: int) -> np.ndarray | None:
    """The logits that a choice was made from: the run's, or the golden's in the run's dtype where they were forced."""
    case = run.manifest.case
    own = run.contents(case.precision, prompt, round_, stage)
    if own is None or case.mode != "local" or stage not in case.forced:
        return own
    true = golden.contents("float32", prompt, round_, stage)
    return own if true is None or true.shape != own.shape else true.astype(own.dtype)


def _vocabulary(golden: TrustedGolden, width: int) -> DraftVocabulary:
    told = golden.manifest.model.draft_vocabulary
    if told is None or len(told) not in (0, width):
        raise Inconclusive(f"{golden.folder} does not say which token each of {width} columns of the draft logits is")
    return DraftVocabulary(np.array(told, np.int64) if told else np.arange(width), "the golden's manifest")
