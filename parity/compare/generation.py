"""What a free run emits: its counts, its own recorded choices, and in float32 the reference's tokens."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from parity.compare.places import in_doubt
from parity.compare.report import Acceptance, AcceptanceMeans
from parity.compare.rows import stage_rows
from parity.compare.scores import NOISE_SIGMAS, row_noise
from parity.compare.structure import Finding
from parity.compare.vocabulary import draft_vocabulary
from parity.errors import UsageError
from parity.golden.case import Generation
from parity.golden.views import DumpView, TrustedGolden

KIND, EMITTED, LENGTH = "generation", "accept.emitted", "accept.length"
CHOICES = ("target.tokens", "verify.tokens")
DRAFTING = (DRAFT_TOKENS, DRAFT_LOGITS) = ("drafter.draft_tokens", "drafter.logits")


@dataclass(frozen=True)
class GenerationCheck:
    """Findings, and those that are set aside: the references disagree on a stage that they depend on."""

    findings: tuple[Finding, ...] = ()
    set_aside: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Generations:
    """What golden and run emit for one prompt: its number and its name."""

    number: int
    prompt: str
    true: Generation
    own: Generation

    @property
    def common(self) -> int:
        """How many tokens both begin with alike."""
        pairs = zip(self.true.emitted, self.own.emitted, strict=False)
        differing = (number for number, (true, own) in enumerate(pairs) if true != own)
        return next(differing, min(len(self.true.emitted), len(self.own.emitted)))


def check_generation(golden: TrustedGolden, run: DumpView) -> GenerationCheck:
    """A free run emits its accepted drafts and one token more, of its own choices; in float32 exactly the reference's.

    A run that was not asked for one has none; the report says that it was not measured.
    """
    seen = run.manifest.case.prompts
    if all(prompt.generation is None for prompt in seen):
        return GenerationCheck()
    findings: list[Finding] = []
    set_aside: list[Finding] = []
    told = [prompt.generation for prompt in golden.manifest.case.prompts if prompt.generation is not None]
    ends = {one.emitted[-1] for one in told if one.finish == "eos"}
    for number, (true, own) in enumerate(zip(golden.manifest.case.prompts, seen, strict=True)):
        if own.generation is None:
            message = f"prompt {own.id}: the free run emits nothing, of other prompts it does"
            findings.append(Finding(KIND, EMITTED, number, 0, message))
            continue
        findings += _contradictions(number, own.id, own.generation)
        if true.generation is None:
            raise UsageError(f"the golden's prompt {true.id} has no generation to compare the run's with")
        pair = Generations(number, own.id, true.generation, own.generation)
        findings += _overrun(pair, golden.manifest.case.max_new_tokens, ends)
        sampled = golden.manifest.case.draws
        differ = _resampled(golden, run, pair) if sampled else _differences(run.manifest.case.precision, pair)
        for stages, finding in differ:
            doubtful = any(in_doubt(name, golden) for name in (*CHOICES, *stages))
            (set_aside if doubtful else findings).append(finding)
        judges = (_undrawn,) if sampled else (_unchosen, _miscounted)
        findings += (finding for judge in judges for finding in judge(golden, run, pair))
    return GenerationCheck(tuple(findings), tuple(set_aside))


def _contradictions(number: int, prompt: str, own: Generation) -> Iterator[Finding]:
    """Rounds before the last, which may be cut, that emit another number of tokens than accepted drafts and one."""
    counts = [*zip(own.acceptance_length, own.accepted_drafts, strict=True)]
    for round_, (length, drafts) in enumerate(counts[:-1], 1):
        if length != drafts + 1:
            emits = f"round {round_} of the free run emits {length} tokens with {drafts} drafts accepted"
            yield Finding(KIND, LENGTH, number, round_, f"prompt {prompt}: {emits}")


def _overrun(pair: Generations, budget: int, ends: Container[int]) -> Iterator[Finding]:
    """Tokens behind the budget, behind a token that ends the reference's text of some prompt, or behind the whole text
    of this one's: no rounding excuses them.

    Args:
        ends: the last tokens of texts that did not end by their budget.
    """
    emitted, true = pair.own.emitted, pair.true.emitted
    last = next((place for place, token in enumerate(emitted, 1) if token in ends), len(emitted))
    if len(emitted) > budget:
        says = f"emits {len(emitted)} tokens of a budget of {budget}"
    elif last < len(emitted):
        says = f"continues behind token {emitted[last - 1]}, which ends a text"
    elif len(emitted) > len(true) == pair.common:
        says = f"continues behind the reference's {len(true)} tokens, which end the text"
    else:
        return
    round_ = len(pair.own.acceptance_length)
    yield Finding(KIND, EMITTED, pair.number, round_, f"prompt {pair.prompt}: the free run {says}")


def _differences(precision: str, pair: Generations) -> Iterator[tuple[tuple[str, ...], Finding]]:
    """Where the run differs from the golden, and the stages beside tokens that this depends on: in float32 anywhere,
    in any precision an end that comes early."""
    true, own = pair.true, pair.own
    if precision == "float32" and true != own:
        counts_alone = true.emitted == own.emitted
        message = f"prompt {pair.prompt}: the free run emits other tokens or counts"
        yield (LENGTH,) if counts_alone else (), Finding(KIND, EMITTED, pair.number, _parting(true, own), message)
    elif own.finish == "eos" and len(own.emitted) < len(true.emitted) and pair.common == len(own.emitted):
        ends = f"the free run ends after {len(own.emitted)} tokens, where the reference continues"
        yield (), Finding(KIND, EMITTED, pair.number, len(own.acceptance_length), f"prompt {pair.prompt}: {ends}")


def _resampled(golden: TrustedGolden, run: DumpView, pair: Generations) -> Iterator[tuple[tuple[str, ...], Finding]]:
    """As `_differences`, where the same random numbers decide. A number within rounding of an edge parts the two: then
    the run chose otherwise in that round of the golden's own text as well, where the choice is judged."""
    round_ = _parting(pair.true, pair.own)
    # What decides a round: the prompt's last row; its drafts and tokens up to the first one that is rejected.
    deciding = slice(pair.true.accepted_drafts[round_ - 1] + 1) if round_ else slice(-1, None)
    for stage in (DRAFT_TOKENS, CHOICES[1]) if round_ else CHOICES[:1]:
        true = golden.contents("float32", pair.number, round_, stage)
        own = run.contents(run.manifest.case.precision, pair.number, round_, stage)
        if true is not None and own is not None and true[deciding].tolist() != own[deciding].tolist():
            return
    yield from _differences(run.manifest.case.precision, pair)


def _undrawn(golden: TrustedGolden, run: DumpView, pair: Generations) -> Iterator[Finding]:
    """The first token of a free run that samples in bfloat16 and parts from the golden, where its numbers cannot call
    for it: by the run's own logits of the same rows, give or take rounding."""
    if len(run.sides) > 1 or run.manifest.case.precision == "float32":
        return
    from parity.compare.sampling.judging import Emitted, can_emit

    true, own = ([*_steps(side)] for side in (pair.true, pair.own))
    first = next((at for at, (one, other) in enumerate(zip(true, own, strict=False)) if one != other), None)
    if first is None:
        return
    round_, row, token, accepted = own[first]
    if (round_, row) != true[first][:2]:
        return  # a round before it ended otherwise, by no other token
    before = tuple(one[2] for one in own[first - row : first]) if round_ else ()
    if can_emit(golden, run, Emitted(pair.number, round_, row, token, accepted, before)) is False:
        emits = f"the free run {'accepts' if accepted else 'emits'} {token} as its token {first + 1}"
        why = f"which the numbers of round {round_} do not call for: its own logits part the two by more than noise"
        yield Finding(KIND, EMITTED, pair.number, round_, f"prompt {pair.prompt}: {emits}, {why}")


def _steps(told: Generation) -> Iterator[tuple[int, int, int, bool]]:
    """Round, row, token and whether it is an accepted draft, of all that is emitted."""
    yield 0, 0, told.emitted[0], False
    at = 1
    for round_, (length, accepted) in enumerate(zip(told.acceptance_length, told.accepted_drafts, strict=True), 1):
        for row, token in enumerate(told.emitted[at : at + length]):
            yield round_, row, token, row < accepted
        at += length


def unseen_text(golden: TrustedGolden, run: DumpView) -> Iterator[str]:
    """What is not judged of a free run in bfloat16: it may part from the golden where its own choices on the golden's
    text do not, since experts and caches are its own; what follows has another text before it."""
    if run.manifest.case.precision != "bfloat16":
        return
    pairs = zip(golden.manifest.case.prompts, run.manifest.case.prompts, strict=True)
    own = [(true.generation, own.generation) for true, own in pairs if own.generation is not None]
    parted = sum(true is not None and true.emitted != free.emitted for true, free in own)
    if golden.manifest.case.sampling and own:
        yield "the text that a free run samples in bfloat16: `parity gate --only sampling` takes its decisions again"
    elif parted:
        judged = f"the text of {parted} of {len(own)} free runs behind its first token that is not the reference's"
        texts = " and `parity gate --only lossless`" if run.view.shows("verify.logits") else ""
        yield f"{judged}: a float32 run{texts} compare{'' if texts else 's'} whole texts"


@dataclass(frozen=True)
class _Parting:
    """Where a free run emits its first token that is not the golden's: the place of its row, and the token."""

    round: int
    row: int
    token: int

    @property
    def tokens(self) -> str:
        """The stage of the target's choice there."""
        return CHOICES[self.round > 0]

    @classmethod
    def of(cls, pair: Generations) -> _Parting | None:
        """None where the two are alike as far as both go; the row counts from the end of a prefill."""
        common = pair.common
        if common == min(len(pair.true.emitted), len(pair.own.emitted)):
            return None
        ends = [0, *accumulate((1, *pair.true.acceptance_length))]
        round_ = max(place for place, end in enumerate(ends) if end <= common)
        return cls(round_, common - ends[round_] if round_ else -1, pair.own.emitted[common])


def _unchosen(golden: TrustedGolden, run: DumpView, pair: Generations) -> Iterator[Finding]:
    """The first token that is not the golden's, where the scores of that very row speak against it.

    Up to there the run has the golden's tokens before it in both, so that its own tensors say what it chooses: its free
    pass may have continued with other experts, and the scores may differ as far as noise does. Of a run that shows no
    scores the golden's speak.
    """
    parting = None if len(run.sides) > 1 else _Parting.of(pair)
    if parting is None:
        return
    where, precision = (pair.number, parting.round), run.manifest.case.precision
    chosen = run.contents(precision, *where, parting.tokens)
    logits = golden.declared[parting.tokens.replace("tokens", "logits")]
    rows = stage_rows(golden, run, logits)
    scores = None if rows is None else rows.device
    if rows is None and precision == "bfloat16":  # float32 differs from the reference nowhere
        rows = stage_rows(golden, golden, logits, device="float32", mode="chained")
        scores = None if rows is None else rows.golden
    if rows is None or scores is None or (chosen is not None and chosen.ndim != 1):
        return
    inside = ((rows.prompt == pair.number) & (rows.round == parting.round)).nonzero()[0]
    count = len(inside) if chosen is None else len(chosen)
    row = parting.row if parting.row < 0 else parting.row - count  # from the end: some rows may not be kept
    if -row > min(count, len(inside)) or row >= 0 or (chosen is not None and int(chosen[row]) == parting.token):
        return
    of = scores[inside[row]].astype(float)
    regret = of.max() - of[parting.token] if 0 <= parting.token < len(of) else float("inf")
    if not regret <= NOISE_SIGMAS * row_noise(rows)[inside[row]]:
        emits = f"the free run emits {parting.token} as its token {pair.common + 1}"
        due = int(of.argmax()) if chosen is None else int(chosen[row])
        there = f"{'its own' if chosen is not None else 'the best of'} {parting.tokens} there are {due}"
        whose = "its" if scores is rows.device else "the reference's"
        why = f"and {whose} scores part the two by more than noise"
        yield Finding(KIND, EMITTED, *where, f"prompt {pair.prompt}: {emits}, {there}, {why}")


def _miscounted(golden: TrustedGolden, run: DumpView, pair: Generations) -> Iterator[Finding]:
    """The first round that accepts another number of drafts, where the run's own draft of the same text says otherwise.

    Up to there the golden and the free run have the same rounds and tokens, so that the run's draft in the round, its
    own choice, is what the free run drafts; but where the reference's scores part the two by no more than noise.
    """
    if len(run.sides) > 1:
        return
    true, own = pair.true, pair.own
    rounds = zip(true.acceptance_length, own.acceptance_length, true.accepted_drafts, own.accepted_drafts, strict=False)
    start = 1
    for round_, (length, other, accepted, free) in enumerate(rounds, 1):
        if pair.common < start + min(length, other):
            return
        cut = round_ in (len(true.acceptance_length), len(own.acceptance_length))  # it may accept fewer, emit as many
        if length == other and (accepted == free or not cut):
            start += length
            continue
        place = min(accepted, free)
        drafts = run.contents(run.manifest.case.precision, pair.number, round_, DRAFT_TOKENS)
        if drafts is None or drafts.ndim != 1 or place >= len(drafts):
            return
        draft, token = int(drafts[place]), own.emitted[start + place]
        if (draft == token) != (free > place) and _parted(golden, pair.number, round_, place, draft, token):
            accepts = f"round {round_} of the free run accepts {free} drafts, the reference {accepted} of the same text"
            why = f"the run's own draft {place + 1} of that round is {draft}, the target's token there {token}"
            yield Finding(KIND, LENGTH, pair.number, round_, f"prompt {pair.prompt}: {accepts}, and {why}")
        return


def _parted(golden: TrustedGolden, prompt: int, round_: int, row: int, draft: int, token: int) -> bool:
    """Whether the reference's scores of a draft part it from a token, or from the second best, by more than noise."""
    if DRAFT_LOGITS not in golden.declared:
        return True  # looked up, not scored
    tokens, logits = (
        stage_rows(golden, golden, golden.declared[name], device="float32", mode="chained") for name in DRAFTING
    )
    if tokens is None or logits is None:
        return False
    at = ((logits.prompt == prompt) & (logits.round == round_)).nonzero()[0][row]
    scores = logits.golden[at].astype(float)
    column = int(draft_vocabulary(golden, logits, tokens).columns(np.array([token]))[0])
    best, second = np.sort(scores)[[-1, -2]]
    regret = best - second if draft == token else best - scores[column] if column >= 0 else np.inf
    return bool(regret > NOISE_SIGMAS * row_noise(logits)[at])


def _parting(true: Generation, seen: Generation) -> int:
    """The first round in which a free run emits other tokens, or another number of them; 0 for the first token."""
    ends = list(accumulate((1, *true.acceptance_length))), list(accumulate((1, *seen.acceptance_length)))
    for round_, (mine, theirs) in enumerate(zip(*ends, strict=False)):
        if mine != theirs or true.emitted[:mine] != seen.emitted[:theirs]:
            return round_
    return min(map(len, ends)) - 1


def acceptance(golden: TrustedGolden, run: DumpView) -> Acceptance:
    """The means of both, and how many prompts emit the same tokens."""
    true, seen = ([prompt.generation for prompt in dump.manifest.case.prompts] for dump in (golden, run))
    free = [generation for generation in seen if generation is not None]
    pairs = zip(true, seen, strict=True)
    same = sum(bool(golden_own and own and golden_own.emitted == own.emitted) for golden_own, own in pairs)
    return Acceptance(
        reference=_counts([generation for generation in true if generation is not None]),
        device=_counts(free) if free else None,
        same_prompts=same if free else None,
        prompts=len(true),
    )


def _counts(generations: Sequence[Generation]) -> AcceptanceMeans:
    """Means over all verify rounds of all prompts; 0 where there was no round."""
    lengths = [length for generation in generations for length in generation.acceptance_length]
    drafts = [count for generation in generations for count in generation.accepted_drafts]
    rounds = max(len(lengths), 1)
    return AcceptanceMeans(
        acceptance_length=sum(lengths) / rounds, accepted_drafts=sum(drafts) / rounds, rounds=len(lengths)
    )
