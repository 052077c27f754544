"""What a run emits by itself: its counts, its own recorded choices, and in float32 the reference's tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from parity.compare.report import Acceptance, Counts
from parity.compare.rows import stage_rows
from parity.compare.scores import NOISE_SIGMAS, row_noise
from parity.compare.structure import Finding
from parity.compare.witnesses import in_doubt
from parity.golden.manifest import Generation, PromptCase
from parity.golden.views import DumpView, TrustedGolden

KIND, EMITTED, LENGTH = "generation", "accept.emitted", "accept.length"
CHOICES = ("target.tokens", "verify.tokens")


@dataclass(frozen=True)
class Generated:
    """Findings, and those that convict nobody, as the references disagree on what they hang on."""

    findings: tuple[Finding, ...] = ()
    set_aside: tuple[Finding, ...] = ()


def check_generation(golden: TrustedGolden, run: DumpView) -> Generated:
    """A free run emits its accepted drafts and one token more, of its own choices; in float32 the reference's, exactly.

    A run in which nobody asked for one has none; the report says that it was not measured.
    """
    seen = run.manifest.case.prompts
    if all(prompt.generation is None for prompt in seen):
        return Generated()
    found, apart = [], []
    for number, (true, own) in enumerate(zip(golden.manifest.case.prompts, seen, strict=True)):
        if own.generation is None:
            found.append(
                Finding(
                    KIND, EMITTED, number, 0, f"prompt {own.id}: the free run emits nothing, of other prompts it does"
                )
            )
            continue
        found += _contradictions(number, own)
        for stage, finding in _differences(golden, run, number, true, own):
            doubtful = any(in_doubt(name, golden) for name in (*CHOICES, *stage))
            (apart if doubtful else found).append(finding)
        found += _unchosen(golden, run, number, true, own)
    return Generated(tuple(found), tuple(apart))


def _contradictions(number: int, prompt: PromptCase) -> Iterator[Finding]:
    """Rounds before the last, which may be cut, that emit another number of tokens than accepted drafts and one."""
    told = prompt.generation
    counts = [*zip(told.acceptance_length, told.accepted_drafts, strict=True)]
    for round_, (length, drafts) in enumerate(counts[:-1], 1):
        if length != drafts + 1:
            said = f"prompt {prompt.id}: round {round_} of the free run emits {length} tokens with {drafts} drafts accepted"
            yield Finding(KIND, LENGTH, number, round_, said)


def _differences(
    golden: TrustedGolden, run: DumpView, number: int, true: PromptCase, own: PromptCase
) -> Iterator[tuple[tuple[str, ...], Finding]]:
    """What the golden says otherwise, and beside tokens the stages that this hangs on: ends in any precision, all in float32."""
    mine, theirs = true.generation, own.generation
    if run.manifest.case.precision == "float32" and mine != theirs:
        same = mine.emitted == theirs.emitted
        place = number, _parting(mine, theirs)
        message = f"prompt {true.id}: the free run emits other tokens or counts"
        yield (LENGTH,) if same else (), Finding(KIND, EMITTED, *place, message)
    elif (
        theirs.finish == "eos"
        and len(theirs.emitted) < len(mine.emitted)
        and _common(mine, theirs) == len(theirs.emitted)
    ):
        message = f"prompt {true.id}: the free run ends behind its {len(theirs.emitted)} tokens, behind which the reference goes on"
        yield (), Finding(KIND, EMITTED, number, len(theirs.acceptance_length), message)


def _unchosen(
    golden: TrustedGolden, run: DumpView, number: int, true: PromptCase, own: PromptCase
) -> Iterator[Finding]:
    """The first token that is not the golden's, where the run's own scores of that very row speak against it.

    Up to there the run has the golden's tokens before it in both, so that its tensors say what it chooses. Its free pass
    may have gone on with other experts: as far as noise goes the scores may part.
    """
    mine, theirs = true.generation, own.generation
    common = _common(mine, theirs)
    if len(run.sides) > 1 or common == min(len(mine.emitted), len(theirs.emitted)):
        return
    ends = [0, *accumulate((1, *mine.acceptance_length))]
    round_ = max(place for place, end in enumerate(ends) if end <= common)
    tokens, token = CHOICES[round_ > 0], theirs.emitted[common]
    rows = stage_rows(golden, run, golden.declared[tokens.replace("tokens", "logits")])
    chosen = run.contents(run.manifest.case.precision, number, round_, tokens)
    if rows is None or chosen is None or chosen.ndim != 1:
        return
    inside = ((rows.prompt == number) & (rows.round == round_)).nonzero()[0]
    row = common - ends[round_] if round_ else len(chosen) - 1
    if row >= min(len(inside), len(chosen)) or int(chosen[row]) == token:
        return
    scores = rows.device[inside[row]].astype(float)
    regret = scores.max() - scores[token] if token < len(scores) else float("inf")
    if not regret <= NOISE_SIGMAS * row_noise(rows)[inside[row]]:
        message = f"prompt {true.id}: the free run emits {token} as its token {common + 1}, its own {tokens} there are {int(chosen[row])}"
        yield Finding(KIND, EMITTED, number, round_, f"{message}, and its scores part the two by more than noise")


def _common(one: Generation, other: Generation) -> int:
    """How many tokens two generations begin with alike."""
    pairs = zip(one.emitted, other.emitted, strict=False)
    return next(
        (number for number, (mine, theirs) in enumerate(pairs) if mine != theirs),
        min(len(one.emitted), len(other.emitted)),
    )


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
    free = [one for one in seen if one is not None]
    same = sum(other is not None and one.emitted == other.emitted for one, other in zip(true, seen, strict=True))
    return Acceptance(
        reference=_counts(true),
        device=_counts(free) if free else None,
        same_prompts=same if free else None,
        prompts=len(true),
    )


def _counts(generations: Sequence[Generation]) -> Counts:
    """Means over all verify rounds of all prompts; 0 where there was no round."""
    lengths = [length for one in generations for length in one.acceptance_length]
    drafts = [count for one in generations for count in one.accepted_drafts]
    rounds = max(len(lengths), 1)
    return Counts(acceptance_length=sum(lengths) / rounds, accepted_drafts=sum(drafts) / rounds, rounds=len(lengths))
