"""Speculative sampling: the accept rule alone, every decision once more, and what comes out as a distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, Place
from parity.compare.vocabulary import DraftVocabulary
from parity.errors import NotOffered
from parity.families import MODEL, family_of
from parity.gates.context import GateContext
from parity.gates.decisions_rows import read_draft_vocabulary
from parity.gates.gate import Check
from parity.gates.sampling_counts import ERROR_RATE, Counts
from parity.gates.sampling_replay import MARGIN, Decision, decisions, rounding, tightened
from parity.gates.sampling_rounds import SampledRound, sampled, table
from parity.gates.sampling_rule import EXACT, FINE_BOUND, fine_shares, whole_rounds
from parity.seam import Looping, Rule, Sampling
from parity.stages import DRAFT_TOKENS, TARGET_TOKENS, VERIFY_TOKENS

RULES: tuple[Rule, ...] = ("residual", "match")
PLAIN: dict[str, Any] = {"temperature": 1.0}
PROCESSED: dict[str, Any] = {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.02}
"""All processors; hot, so that rows have several tokens left, which is what decisions are made between."""
ALONE: dict[str, Any] = {"temperature": 0.7, "top_k": 6, "top_p": 0.9, "min_p": 0.05}
"""The same for the rule alone, in a vocabulary of eight."""
GREEDY: dict[str, Any] = {"temperature": 0.0}

PROMPTS, BUDGET = 2, 24
ROUNDS = 300
"""Of each rule for the distribution, those of the replay among them."""
CLOSE = 0.01
"""Share of decisions within rounding of an edge: of random numbers 1e-4, of those moved to a margin none."""
FEW = 4
"""Such decisions at any rate: a number in a cell narrower than rounding stays there, and is met in both runs."""


def checks(context: GateContext) -> Iterator[Check]:
    """Both rules; the rule alone first, which needs no model."""
    device = context.device()
    if not device.describe().samples:
        yield Check("sampling", NOT_JUDGED, "the device says nothing of sampling (`Samples`)", undeclared=True)
        return
    if isinstance(device, Looping):
        yield Check(
            "sampling", NOT_JUDGED, "the device's loop is one piece: no round of it can be asked", undeclared=True
        )
        return
    for rule in RULES:
        yield _rule_alone(context, rule)
    has_logits = MODEL in family_of(context.golden.manifest.model.family).has
    vocabulary = read_draft_vocabulary(context.golden) if has_logits else DraftVocabulary(np.empty(0, np.int64), "")
    yield _at_zero(context, vocabulary)
    for rule in RULES:
        counts, random = Counts(), np.random.default_rng(context.seed)
        for number, (name, values) in enumerate((("plain", PLAIN), ("processed", PROCESSED))):
            settings = Sampling(rule=rule, **values)
            check, rounds = _replayed(context, f"replay, {rule}, {name}", settings, vocabulary, number)
            yield check
            for seen in rounds:
                counts.add(seen, settings, vocabulary, random)
        yield _distribution(context, settings, vocabulary, counts, random)


def _rule_alone(context: GateContext, rule: Rule) -> Check:
    """The device's own function on distributions that are known."""
    name, device = f"rule alone, {rule}", context.device()
    try:
        count, worst = whole_rounds(device, Sampling(rule=rule))
        fine = [fine_shares(device, Sampling(rule=rule, **values), context.seed) for values in (PLAIN, ALONE, GREEDY)]
    except NotOffered as error:
        return Check(name, NOT_JUDGED, str(error))
    shares, share = sum(number for number, _ in fine), max((off for _, off in fine), key=lambda off: off.by)
    line = f"{count} rounds, off by {worst.by:.1g} (bound {EXACT:g}); {shares} shares, off by {share.by:.2g} "
    line += f"(bound {FINE_BOUND:.2g}), seed {context.seed}"
    figures = {"rounds": count, "worst": worst.by, "shares": shares, "worst_share": share.by, "bound": FINE_BOUND}
    wrong = [str(off) for off, bound in ((worst, EXACT), (share, FINE_BOUND)) if not off.by <= bound]
    return Check(name, FAIL if wrong else PASS, "; ".join([*wrong, line]), figures)


def _at_zero(context: GateContext, vocabulary: DraftVocabulary) -> Check:
    """Temperature 0 is greedy: every row's token and every draft is the largest logit's, the lowest id on a tie."""
    uniforms = table((context.seed,), BUDGET, context.golden.manifest.case.k)
    rounds = list(_play(context, Sampling(temperature=0), 0, uniforms))
    rows, wrong = 0, []
    for seen in rounds:
        made = [("token", seen.tokens, seen.logits.argmax(axis=1))]
        if seen.draft_logits is not None:
            made.append(("draft", seen.drafts, vocabulary.tokens[seen.draft_logits.argmax(axis=1)]))
        rows += sum(len(got) for _, got, _ in made)
        wrong += [
            f"round {seen.round}, row {row}: {what} {got[row]}, {due[row]} is the largest"
            for what, got, due in made
            for row in np.flatnonzero(got != due)
        ]
    line = f"{len(rounds)} rounds, {rows} choices"
    told = f"{wrong[0]}; {len(wrong)} wrong; {line}" if wrong else f"{line}, each the largest logit's"
    return Check("temperature 0", FAIL if wrong else PASS, told, {"choices": rows, "wrong": len(wrong)})


def _replayed(
    context: GateContext, name: str, settings: Sampling, vocabulary: DraftVocabulary, number: int
) -> tuple[Check, list[SampledRound]]:
    """Prompts sampled by random numbers, and again by numbers that decide the same a margin from an edge."""
    rounds: list[SampledRound] = []
    made: list[Decision] = []
    again: list[Decision] = []
    for prompt in range(min(PROMPTS, len(context.golden.manifest.case.prompts))):
        uniforms = table((context.seed, number, prompt), BUDGET, context.golden.manifest.case.k)
        played = list(_play(context, settings, prompt, uniforms))
        own = [one for seen in played for one in decisions(seen, settings, vocabulary)]
        closer = list(_play(context, settings, prompt, tightened(own, uniforms)))
        again += [one for seen in closer for one in decisions(seen, settings, vocabulary)]
        rounds, made = rounds + played, made + own
    wrong = [one for one in (*made, *again) if not one.right]
    return _judged(name, rounds, made, again, wrong, context.seed), rounds


def _play(context: GateContext, settings: Sampling, prompt: int, uniforms: np.ndarray) -> Iterator[SampledRound]:
    ids = context.golden.manifest.case.prompts[prompt].ids
    return sampled(context.device(), settings, prompt, ids, BUDGET, uniforms)


def _judged(
    name: str,
    rounds: Sequence[SampledRound],
    made: Sequence[Decision],
    again: Sequence[Decision],
    wrong: Sequence[Decision],
    seed: int,
) -> Check:
    kinds, close = Counter(one.what for one in made), sum(bool(one.close) for one in (*made, *again))
    margin = MARGIN * rounding(max(seen.logits.shape[1] for seen in rounds))
    near = sum(bool(one.edge <= 2 * MARGIN * one.slack) for one in again)
    kept = sum(int((seen.tokens[:-1] == seen.drafts).sum()) for seen in rounds)
    counted = ", ".join(f"{what} {count}" for what, count in kinds.items())
    line = (
        f"{len(rounds)} rounds, {len(made)} decisions ({counted}; {kept} accepted) and {len(again)} again, {near} of "
    )
    line += f"them at an edge: a shift of {margin:.1g} shows; {close} within rounding; seed {seed}"
    figures = {"decisions": dict(kinds), "again": len(again), "near": near, "close": close, "wrong": len(wrong)}
    cut = [seen for seen in rounds if list(seen.emitted[0]) != list(seen.emitted[1])]
    if wrong:
        first, bad = wrong[0], Counter(one.what for one in wrong)
        said = ", ".join(f"{count} of {what}" for what, count in bad.items())
        return Check(name, FAIL, f"{first}; wrong are {said}; {line}", figures, _place(first))
    if cut:
        said = f"round {cut[0].round} emits {list(cut[0].emitted[0])}, {list(cut[0].emitted[1])} is due"
        return Check(name, FAIL, f"{said}; {line}", figures)
    if not any(len(seen.drafts) for seen in rounds):
        return Check(name, INCONCLUSIVE, f"no round has a draft; {line}", figures)
    if close > FEW + CLOSE * (len(made) + len(again)):
        return Check(name, INCONCLUSIVE, f"too many decisions within rounding; {line}", figures)
    return Check(name, PASS, line, figures)


def _place(first: Decision) -> Place:
    later = DRAFT_TOKENS if first.what == "draft" else VERIFY_TOKENS
    return Place(later if first.round.round else TARGET_TOKENS, None, first.round.prompt, first.round.round)


def _distribution(
    context: GateContext, settings: Sampling, vocabulary: DraftVocabulary, counts: Counts, random: np.random.Generator
) -> Check:
    """More rounds, as many as are asked for; every position and every accepted length on its own."""
    prompts, number, made = len(context.golden.manifest.case.prompts), 0, sum(map(len, counts.ranks.values()))
    while made < ROUNDS:
        uniforms = table((context.seed, 2, number), BUDGET, context.golden.manifest.case.k)
        for seen in _play(context, settings, number % prompts, uniforms):
            counts.add(seen, settings, vocabulary, random)
            made += 1
        number += 1
    lines = list(counts.lines())
    wrong = [line for line in lines if line.off > line.bound]
    said = f"error rate {ERROR_RATE:g} each, a bias of the bound's size shows every other time, seed {context.seed}"
    figures = {line.what: {"samples": line.samples, "off": line.off, "bound": line.bound} for line in lines}
    text = "; ".join(map(str, [*wrong, *(line for line in lines if line not in wrong)]))
    return Check(f"distribution, {settings.rule}", FAIL if wrong else PASS, f"{text}; {said}", figures)
